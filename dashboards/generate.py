"""Writes what this folder generates, here and into the chart: `make dashboards`."""

from pathlib import Path

from dashboards import engine, nodes, overview, router, speculation
from dashboards.boards import text_of

HERE = Path(__file__).parent
CHART = HERE.parent / "helm" / "peagle" / "files"
BOARDS = (overview.BOARD, speculation.BOARD, router.BOARD, engine.BOARD, nodes.BOARD)


def generated() -> dict[Path, str]:
    """Every file and its text."""
    texts = {board.file: text_of(board) for board in BOARDS}
    return {
        folder / name: text for folder in (HERE / "generated", CHART / "dashboards") for name, text in texts.items()
    }


def main() -> None:
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
