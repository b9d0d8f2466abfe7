"""`peagle bench`: the command line of the measurements."""

import asyncio
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from peagle.bench.options import Comparison, LoadOptions, take_load
from peagle.bench.plan import NONE, PEAGLE
from peagle.config import Deployment, load_deployment
from peagle.errors import ConfigError
from peagle.serve.terminal import Terminal

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Measure what speculation gives on this machine."""


File = Annotated[Path, typer.Argument(metavar="FILE", help="Deployment file of the model and its drafter.")]
Out = Annotated[Path | None, typer.Option(help="Folder for the results; by default bench-results/TIME.")]


@app.command()
@take_load
def speculation(
    file: File,
    baseline: Annotated[
        Path | None, typer.Option(help="Deployment file of the same model with another drafter, such as EAGLE-3.")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Some of none,eagle3,p-eagle; by default all that the files offer.")
    ] = "",
    depths: Annotated[str, typer.Option(help="Values of K, with commas.")] = "1,3,5,7",
    concurrency: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,8",
    out: Out = None,
    *,
    load: LoadOptions,
) -> None:
    """Compare no speculation, EAGLE-3 and P-EAGLE at several K.

    Runs real engines. All stay loaded and take turns, prompt set by prompt set, so that a machine whose speed drifts
    treats all alike. Greedy, fixed output length. Writes result.json, report.md and the engines' log.

    Example: peagle bench speculation deployments/embedded.yaml --baseline deployments/embedded-eagle3.yaml
    """
    names = tuple(name.strip() for name in methods.split(",") if name.strip())
    comparison = Comparison(names, _numbers("--depths", depths), _numbers("--concurrency", concurrency), load)
    _compare(load_deployment(file), load_deployment(baseline) if baseline else None, comparison, out)


@app.command()
@take_load
def depth(
    file: File,
    depths: Annotated[str, typer.Option(help="Static values of K to compare with, with commas; 0 verifies none.")] = (
        "0,1,3,5,7"
    ),
    concurrency: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,2,4,8,16,32",
    out: Out = None,
    *,
    load: LoadOptions,
) -> None:
    """Compare adaptive depth with every static K, and with an engine that has no drafter.

    One engine takes every K and the Router's own rule in turn, prompt set by prompt set; what the rule has learned
    stays for its next turn. Greedy, fixed output length. Writes result.json, report.md and the engines' log.

    Example: peagle bench depth deployments/embedded.yaml --concurrency 1,8
    """
    deployment = load_deployment(file)
    if deployment.drafter is None or deployment.drafter.method != PEAGLE or not deployment.speculation.live_depth:
        problem = "its depth cannot change while it runs"
        raise ConfigError(f"{file}: speculation.live_depth", None, problem, "Name a P-EAGLE drafter with live_depth.")
    asked = _numbers("--depths", depths, least=0), _numbers("--concurrency", concurrency)
    _compare(deployment, None, Comparison((NONE, PEAGLE), *asked, load, adaptive=True), out)


def _compare(deployment: Deployment, baseline: Deployment | None, comparison: Comparison, out: Path | None) -> None:
    folder = out or Path("bench-results") / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    folder.mkdir(parents=True, exist_ok=True)
    with Terminal(folder / "engines.log") as terminal:
        with terminal.stage("Load vLLM"):
            from peagle.bench.session import compare
        # SIGTERM unwinds like Ctrl-C, so that the engines end too.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        asyncio.run(compare(deployment, baseline, comparison, folder, terminal))


def _numbers(option: str, text: str, least: int = 1) -> tuple[int, ...]:
    """Whole numbers of at least `least`, in the order given, each once.

    Raises:
        ConfigError: One of them is not such a number.
    """
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < least:
        problem = f"it is no list of numbers from {least} up"
        raise ConfigError(option, text, problem, "Write them with commas, such as 1,3,7.")
    return numbers
