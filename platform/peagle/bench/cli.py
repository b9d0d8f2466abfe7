"""`peagle bench`: the command line of the measurements."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager
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
    shifting: Annotated[
        bool,
        typer.Option("--shifting", help="Also compare while load (1, 8, 32) and prompts (code, prose, noise) shift."),
    ] = False,
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
    _compare(deployment, None, Comparison((NONE, PEAGLE), *asked, load, adaptive=True, shifting=shifting), out)


@app.command()
def dispatch(
    replicas: Annotated[int, typer.Option(min=1, help="Replicas of each policy's fleet.")] = 8,
    slow: Annotated[int, typer.Option(min=0, help="How many of them run at half speed.")] = 1,
    callers: Annotated[int, typer.Option(min=1, help="Processes that dispatch, as ingresses do.")] = 2,
    requests: Annotated[int, typer.Option(min=1, help="Requests in each run.")] = 400,
    per_second: Annotated[float, typer.Option(min=0.1, help="Requests each second, on average.")] = 14.0,
    repeats: Annotated[int, typer.Option(min=1, help="Measured repeats; the report has their median.")] = 5,
    out: Out = None,
) -> None:
    """Compare the platform's dispatch with Ray Serve's default and with round robin.

    Real Ray Serve and the real request router; the replicas take the time of an engine and compute nothing, so that
    many fit on a small machine. Short and long requests, half of which begin like others. In each repeat every policy
    gets the same requests. Writes result.json, report.md and the cluster's log.

    Example: peagle bench dispatch --replicas 8 --slow 1
    """
    if slow > replicas:
        raise ConfigError("--slow", slow, f"there are {replicas} replicas", "Name at most as many.")
    with _measuring(out, "cluster.log") as (folder, terminal):
        from peagle.bench.dispatch import DispatchOptions, compare_dispatch

        options = DispatchOptions(replicas, slow, callers, requests, per_second, repeats)
        compare_dispatch(options, folder, terminal)


def _compare(deployment: Deployment, baseline: Deployment | None, comparison: Comparison, out: Path | None) -> None:
    with _measuring(out, "engines.log") as (folder, terminal):
        with terminal.stage("Load vLLM"):
            from peagle.bench.session import compare
        asyncio.run(compare(deployment, baseline, comparison, folder, terminal))


@contextmanager
def _measuring(out: Path | None, log: str) -> Iterator[tuple[Path, Terminal]]:
    """A folder for the results, and a terminal whose log is in it."""
    folder = out or Path("bench-results") / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    folder.mkdir(parents=True, exist_ok=True)
    # SIGTERM unwinds like Ctrl-C, so that what was started ends too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Terminal(folder / log) as terminal:
        yield folder, terminal


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
