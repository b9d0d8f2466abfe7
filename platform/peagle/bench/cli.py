"""`peagle bench`: the command line of the measurements."""

import asyncio
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from peagle.bench.options import SpeculationOptions
from peagle.config import load_deployment
from peagle.errors import ConfigError
from peagle.serve.terminal import Terminal

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Measure what speculation gives on this machine."""


@app.command()
def speculation(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Deployment file of the model and its drafter.")],
    baseline: Annotated[
        Path | None, typer.Option(help="Deployment file of the same model with another drafter, such as EAGLE-3.")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Some of none,eagle3,p-eagle; by default all that the files offer.")
    ] = "",
    depths: Annotated[str, typer.Option(help="Values of K, with commas.")] = "1,3,5,7",
    concurrency: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,8",
    prompts: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 24,
    tokens: Annotated[int, typer.Option(min=2, help="Output tokens of each request.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Measured repeats; the report has their median.")] = 5,
    warmup: Annotated[int, typer.Option(min=0, help="Prompt sets run before measuring, at each concurrency.")] = 1,
    skip_loops: Annotated[
        float | None,
        typer.Option(
            metavar="MIN_SHARE",
            min=0.0,
            max=1.0,
            help="Leave out prompts whose output without speculation has a smaller share of distinct 8-grams.",
        ),
    ] = None,
    prompts_from: Annotated[
        Path | None, typer.Option(help='JSON lines {"prompt": "..."}; by default the held-out prompts shipped here.')
    ] = None,
    eager: Annotated[bool, typer.Option("--eager", help="Do not compile: quicker to start, slower to run.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder for the results; by default bench-results/TIME.")] = None,
) -> None:
    """Compare no speculation, EAGLE-3 and P-EAGLE at several K.

    Runs real engines. All stay loaded and take turns, prompt set by prompt set, so that a machine whose speed drifts
    treats all alike. Greedy, fixed output length. Writes result.json, report.md and the engines' log.

    Example: peagle bench speculation deployments/embedded.yaml --baseline deployments/embedded-eagle3.yaml
    """
    options = SpeculationOptions(
        methods=tuple(name.strip() for name in methods.split(",") if name.strip()),
        depths=_numbers("--depths", depths),
        concurrencies=_numbers("--concurrency", concurrency),
        prompts=prompts,
        output_tokens=tokens,
        repeats=repeats,
        warmup_sets=warmup,
        min_distinct_share=skip_loops,
        prompts_from=prompts_from,
        eager=eager,
    )
    deployment = load_deployment(file)
    rival = load_deployment(baseline) if baseline else None
    folder = out or Path("bench-results") / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")

    folder.mkdir(parents=True, exist_ok=True)
    with Terminal(folder / "engines.log") as terminal:
        with terminal.stage("Load vLLM"):
            from peagle.bench.session import compare
        # SIGTERM unwinds like Ctrl-C, so that the engines end too.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        asyncio.run(compare(deployment, rival, options, folder, terminal))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1, in the order given, each once.

    Raises:
        ConfigError: One of them is not such a number.
    """
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise ConfigError(option, text, "it is no list of numbers from 1 up", "Write them with commas, such as 1,3,7.")
    return numbers
