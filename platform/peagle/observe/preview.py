"""`peagle dashboards preview`: every panel of every dashboard, drawn with current data from Prometheus."""

import html
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from peagle.errors import ConfigError
from peagle.observe.draw import draw
from peagle.observe.prometheus import Answer, Prometheus, Span, filled_in
from peagle.palette import SETTINGS

COLUMNS, UNIT_INCHES, EMPTY_HEIGHT = 24, 0.55, 3
AS_TEXT = {**SETTINGS, "svg.fonttype": "none"}
"""Settings of pictures: text stays text, which is smaller than its outlines and can be searched."""
FIRST = "peagle-overview"
INSTANT = ("stat", "bargauge")
STYLE = """
:root { color-scheme: light dark; }
body { font-family: sans-serif; margin: 1em; background: Canvas; color: CanvasText; }
section { display: grid; grid-template-columns: repeat(24, minmax(0, 1fr)); gap: 6px; }
figure { margin: 0; border: 1px solid #7a7f8755; }
figure svg { display: block; width: 100%; height: auto; }
figcaption { font-size: 11px; opacity: 0.75; padding: 2px 6px; }
h3 { grid-column: 1 / -1; margin: 0.5em 0 0; font-size: 14px; }
"""


@dataclass(frozen=True, slots=True)
class Drawn:
    """A panel with its answers."""

    panel: dict[str, Any]
    answers: tuple[Answer, ...]

    @property
    def problem(self) -> str | None:
        return next((answer.problem for answer in self.answers if answer.problem), None)

    @property
    def is_empty(self) -> bool:
        return not any(line.has_value for answer in self.answers for line in answer.lines)

    @property
    def height(self) -> int:
        """Rows of the grid that the picture takes; few if all it says is why there is no data."""
        is_short = self.panel["type"] != "row" and self.is_empty and not self.problem
        return EMPTY_HEIGHT if is_short else int(self.panel["gridPos"]["h"])


Boards = Sequence[tuple[dict[str, Any], Sequence[Drawn]]]


def read_boards(folder: Path) -> list[dict[str, Any]]:
    """Return the dashboards in `folder`. Raises ConfigError if there are none."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    boards = [each for each in found if isinstance(each, dict) and {"uid", "title", "panels"} <= each.keys()]
    if not boards:
        raise ConfigError(
            "--dashboards", str(folder), "it has no dashboards", "Name dashboards/generated of peagle's repository."
        )
    return sorted(boards, key=lambda board: (board["uid"] != FIRST, board["title"]))


def ask(board: dict[str, Any], prometheus: Prometheus, span: Span, price: float) -> list[Drawn]:
    """Run every query of every panel; rows are kept without an answer."""

    def answers(panel: dict[str, Any]) -> Iterator[Answer]:
        question = prometheus.now if panel["type"] in INSTANT else prometheus.over
        for target in panel.get("targets", ()):
            expr = filled_in(target["expr"], span, {"price": f"{price:g}"})
            yield question(expr, target["legendFormat"], span)

    return [Drawn(panel, tuple(answers(panel))) for panel in board["panels"]]


def picture(boards: Boards, span: Span) -> str:
    """Return one SVG picture of all dashboards, one below the other."""
    placed = [(board, list(_placed(panels))) for board, panels in boards]
    heights = [max(y + each.height for y, each in panels) for _, panels in placed]
    total = sum(heights) + 2 * len(heights)
    figure = Figure(figsize=(COLUMNS * UNIT_INCHES, total * UNIT_INCHES))
    top = 0
    for (board, panels), height in zip(placed, heights, strict=True):
        figure.text(0.01, 1 - (top + 1) / total, board["title"], fontsize=15, weight="bold")
        top += 2
        for row, each in panels:
            place = each.panel["gridPos"]
            x, y = place["x"] / COLUMNS, 1 - (top + row + each.height) / total
            w, h = place["w"] / COLUMNS, each.height / total
            if each.panel["type"] == "row":
                figure.text(0.01, y + h * 0.2, each.panel["title"], fontsize=11)
            else:
                inner = (x + 0.045, y + 0.9 / total, w - 0.06, h - 1.9 / total)
                draw(figure.add_axes(inner), each.panel, each.answers, span)
        top += height
    return _svg(figure)


def _placed(panels: Sequence[Drawn]) -> Iterator[tuple[int, Drawn]]:
    """Yield each panel with its row in the grid, so that lines of empty panels leave no gap."""
    row = 0
    for _, line in groupby(panels, key=lambda each: each.panel["gridPos"]["y"]):
        members = list(line)
        yield from ((row, each) for each in members)
        row += max(each.height for each in members)


def page(boards: Boards, span: Span) -> str:
    """Return one HTML page of all dashboards, with each panel as a picture that can be enlarged."""
    parts = [f"<!doctype html><meta charset='utf-8'><title>peagle dashboards</title><style>{STYLE}</style>"]
    for board, panels in boards:
        parts.append(f"<h2>{html.escape(board['title'])}</h2><p>{html.escape(board['description'])}</p><section>")
        parts += [_figure(each, span) for each in panels]
        parts.append("</section>")
    return "\n".join(parts)


def _figure(each: Drawn, span: Span) -> str:
    panel, place = each.panel, each.panel["gridPos"]
    if panel["type"] == "row":
        return f"<h3>{html.escape(panel['title'])}</h3>"
    figure = Figure(figsize=(place["w"] * UNIT_INCHES, each.height * UNIT_INCHES * 0.8), layout="tight")
    draw(figure.add_subplot(), panel, each.answers, span)
    # Without its own salt, element ids of one picture would clash with those of another on the same page.
    with matplotlib.rc_context({"svg.hashsalt": str(panel["id"]) + panel["title"]}):
        drawn = _svg(figure)
    drawn = drawn[drawn.index("<svg") :]
    queries = html.escape("\n".join(target["expr"] for target in panel["targets"]))
    return (
        f"<figure style='grid-column: span {place['w']}' title='{queries}'>{drawn}"
        f"<figcaption>{html.escape(panel['description'])}</figcaption></figure>"
    )


def _svg(figure: Figure) -> str:
    sink = io.StringIO()
    figure.savefig(sink, format="svg", transparent=True)
    return sink.getvalue()


def run_preview(url: str, folder: Path, out: Path, minutes: float, price: float) -> int:
    """Write preview.html and preview.svg into `out`; returns 1 if Prometheus refused a query, else 0."""
    boards, span = read_boards(folder), Span.of_last(minutes)
    with Prometheus(url) as prometheus:
        drawn = [(board, ask(board, prometheus, span, price)) for board in boards]
    out.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(AS_TEXT):
        (out / "preview.html").write_text(page(drawn, span), encoding="utf-8")
        (out / "preview.svg").write_text(picture(drawn, span), encoding="utf-8")
    refused = 0
    for board, panels in drawn:
        asked = [each for each in panels if each.panel["type"] != "row"]
        empty = [each.panel["title"] for each in asked if each.is_empty and not each.problem]
        print(
            f"{board['title']}: {len(asked)} panels, {len(empty)} without data{': ' if empty else ''}{', '.join(empty)}"
        )
        for each in asked:
            if each.problem:
                refused += 1
                print(f"  refused: {each.panel['title']}: {each.problem}")
    print(f"Written: {out / 'preview.html'}, {out / 'preview.svg'}")
    return 1 if refused else 0
