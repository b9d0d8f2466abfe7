"""`peagle dashboards`: the command line of the dashboards."""

from pathlib import Path
from typing import Annotated

import typer

from peagle.client.server_url import http_url

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Draw the dashboards."""


@app.command()
def preview(
    prometheus: Annotated[
        str, typer.Option(help="URL of Prometheus.", parser=http_url, metavar="URL")
    ] = "http://127.0.0.1:9090",
    dashboards: Annotated[Path, typer.Option(help="Folder of the dashboards.")] = Path("dashboards/generated"),
    out: Annotated[Path, typer.Option(help="Folder for preview.html and preview.svg.")] = Path("bench-results/preview"),
    minutes: Annotated[float, typer.Option(min=1, max=10_080, help="Minutes to show, up to now.")] = 15.0,
    price: Annotated[float, typer.Option(min=0, help="Price of a device-hour.")] = 1.0,
) -> None:
    """Draw every panel with data from Prometheus.

    Needs no Grafana. Writes one HTML page and one SVG, and lists panels without data. Exits with 1 if Prometheus
    refuses a query.

    Example: peagle dashboards preview --minutes 10
    """
    from peagle.observe.preview import run_preview

    raise typer.Exit(run_preview(prometheus, dashboards, out, minutes, price))
