"""Writes the generated dashboards and rules, here and into the chart: `make dashboards`."""

from pathlib import Path

from dashboards import alerts, boards, engine, nodes, overview, router, rules, speculation

HERE = Path(__file__).parent
CHART = HERE.parent / "helm" / "peagle" / "files"
BOARDS = (overview.BOARD, speculation.BOARD, router.BOARD, engine.BOARD, nodes.BOARD)


def generated() -> dict[Path, str]:
    """Return every generated file with its text."""
    shown = {board.file: boards.text_of(board) for board in BOARDS}
    ruled = {name: rules.text_of(groups) for name, groups in alerts.GROUPS.items()}
    here = {HERE / "generated" / name: text for name, text in {**shown, **ruled}.items()}
    dashboards = {CHART / "dashboards" / name: text for name, text in shown.items()}
    return here | dashboards | {CHART / "alerts" / name: text for name, text in ruled.items()}


def main() -> None:
    for path, text in generated().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
