"""`peagle bench`: the command line of the measurements."""

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import chain, count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from peagle.bench.core.options import LoadOptions, take_load
from peagle.bench.core.records import EAGLE3, NONE, PEAGLE
from peagle.bench.dispatch.compared_policies import COMPARED, compared
from peagle.config import Deployment, load_deployment
from peagle.errors import ConfigError
from peagle.host.folders import make_folder
from peagle.host.terminal import Terminal

if TYPE_CHECKING:
    from peagle.bench.core.session import Job

RESULTS = Path("bench-results")

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """Measure speculation on this machine."""


File = Annotated[Path, typer.Argument(metavar="FILE", help="Deployment file of the model and its drafter.")]
Modelled = Annotated[
    Path | None,
    typer.Argument(metavar="[FILE]", help="Deployment file of the model and its drafter; with --shape, of the engine."),
]
Shape = Annotated[
    str | None,
    typer.Option(
        help="Random weights of this shape instead of the file's model: a config.json, or "
        "llama-3.1-8b, qwen3-30b-a3b, gpt-oss-20b. Prompts are random tokens."
    ),
]
Acceptance = Annotated[
    str | None,
    typer.Option(
        help="With --shape, on a GPU: probabilities that the first, the first two, ... drafts are accepted, separated "
        "by commas. Drafts are then accepted with these probabilities, whatever their tokens."
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder for the results; by default bench-results/TIME.")]
GoOn = Annotated[
    Path | None,
    typer.Option(
        help="Folder for the results, or of a run to resume; by default the newest unfinished run with these settings "
        "in bench-results, else bench-results/TIME."
    ),
]
Price = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        help="Price of one GPU (on a CPU: of the machine) per hour, in any currency; adds the cost of a million "
        "output tokens. With --out of a finished run, sets or changes its price without measuring again.",
    ),
]


@app.command()
@take_load
def speculation(
    file: Modelled = None,
    baseline: Annotated[
        Path | None, typer.Option(help="Deployment file of the same model with another drafter, such as EAGLE-3.")
    ] = None,
    methods: Annotated[
        str, typer.Option(help="Some of none,eagle3,p-eagle; by default all that the files provide.")
    ] = "",
    depths: Annotated[str, typer.Option(help="Values of K, separated by commas.")] = "1,3,5,7",
    concurrency: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,8",
    shape: Shape = None,
    acceptance: Acceptance = None,
    out: GoOn = None,
    price_per_hour: Price = None,
    *,
    load: LoadOptions,
) -> None:
    """Compare no speculation, EAGLE-3 and P-EAGLE at several K.

    Runs real engines. All stay loaded and take turns, prompt set by prompt set, so that drift of the machine's speed
    affects all equally. Greedy, fixed output length. Writes result.json, report.md, pictures and the engines' log.

    Every measured pass is saved at once. After Ctrl-C or a crash, the same command resumes the run; a folder with a run
    of other settings, another version or another machine is refused.

    Example: peagle bench speculation deployments/embedded.yaml --baseline deployments/embedded-eagle3.yaml
    Example: peagle bench speculation --shape llama-3.1-8b --acceptance .83,.6,.45,.34,.27,.21,.17 --depths 3,7
    """
    from peagle.bench.engines.engine_session import EngineJob

    asked = _numbers("--depths", depths), _numbers("--concurrency", concurrency)
    if shape is not None and baseline is not None:
        raise ConfigError("--baseline", str(baseline), "a shape has heads of both methods", "Omit it.")
    with _model(file, shape, acceptance, max(asked[0])) as (files, curve):
        rival = load_deployment(baseline) if baseline else files.get(EAGLE3)
        job = EngineJob.of(
            files[PEAGLE],
            rival,
            _names(methods),
            *asked,
            load,
            price_per_hour=price_per_hour,
            acceptance=curve,
            made_up=shape is not None,
        )
        _run(job, out)


@app.command()
@partial(take_load, prompts=96)
def depth(
    file: Modelled = None,
    depths: Annotated[
        str | None,
        typer.Option(
            help="Static values of K to compare with, separated by commas; 0 verifies none. By default 0, 1, 3, 5, 7 "
            "up to the file's depth_max."
        ),
    ] = None,
    concurrency: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,2,4,8,16,32",
    shifting: Annotated[
        bool,
        typer.Option("--shifting", help="Also compare while load (1, 8, 32) and prompts (code, prose, noise) shift."),
    ] = False,
    mixed: Annotated[
        bool, typer.Option("--mixed", help="Replace every second prompt with random tokens, to mix acceptance.")
    ] = False,
    fixed: Annotated[
        int | None,
        typer.Option(
            min=1, help="Also measure the rule's cost: the rule held at this K, and an engine of this K without it."
        ),
    ] = None,
    shape: Shape = None,
    acceptance: Acceptance = None,
    out: GoOn = None,
    price_per_hour: Price = None,
    *,
    load: LoadOptions,
) -> None:
    """Compare adaptive depth with every static K, and with an engine that has no drafter.

    One engine runs every K and the Router's rule in turn, prompt set by prompt set; the rule keeps its estimates
    between turns. Greedy, fixed output length. Writes result.json, report.md, pictures and the engines' log.
    `cost_table` of result.json is the time of a decode-only step at each batch size and K.

    After Ctrl-C the same command resumes the run; the rule then starts learning again.

    Example: peagle bench depth deployments/embedded.yaml --concurrency 1,8 --prompts 24
    Example: peagle bench depth --shape llama-3.1-8b --acceptance .83,.6,.45,.34,.27,.21,.17 --concurrency 1,8,32
    """
    from peagle.bench.engines.engine_session import EngineJob
    from peagle.engine.cost_prior import cost_prior

    with _model(file, shape, acceptance) as (files, curve):
        deployment = files[PEAGLE]
        _check_depth(file, deployment)
        deepest = deployment.speculation.depth_max
        usual = ",".join(str(each) for each in (0, 1, 3, 5, 7) if each <= deepest)
        asked = _numbers("--depths", depths or usual, least=0), _numbers("--concurrency", concurrency)
        if not any(asked[0]):
            raise ConfigError("--depths", depths, "the largest is the draft depth: it must exceed 0", "Add a larger K.")
        for stand_in in cost_prior(deployment).stand_ins.values():
            typer.echo(f"The rule starts from assumed step times: {stand_in}", err=True)
        job = EngineJob.of(
            deployment,
            None,
            (NONE, PEAGLE),
            *asked,
            load,
            adaptive=True,
            shifting=shifting,
            mixed=mixed,
            fixed=fixed,
            price_per_hour=price_per_hour,
            acceptance=curve,
            made_up=shape is not None,
        )
        _run(job, out)


def _check_depth(file: Path | None, deployment: Deployment) -> None:
    if deployment.drafter is None or deployment.drafter.method != PEAGLE or not deployment.speculation.live_depth:
        problem = "its depth cannot change while it runs"
        raise ConfigError(f"{file}: speculation.live_depth", None, problem, "Name a P-EAGLE drafter with live_depth.")


@contextmanager
def _model(
    file: Path | None, shape: str | None, acceptance: str | None, drafted: int | None = None
) -> Iterator[tuple[dict[str, Deployment], tuple[float, ...] | None]]:
    """Return deployments by drafting method, and the acceptance curve, from `file` or a shape.

    Raises:
        ConfigError: Neither is given, or they are inconsistent.
    """
    if shape is None:
        if file is None:
            raise ConfigError("FILE", None, "no model is named", "Name a deployment file, or a --shape.")
        if acceptance is not None:
            raise ConfigError(
                "--acceptance", acceptance, "it applies only to random weights", "Name a --shape as well."
            )
        yield {PEAGLE: load_deployment(file)}, None
        return
    from peagle.bench.engines.made_up import made_up, read_acceptance
    from peagle.serve.launch.machine_checks import installed_engine

    like = load_deployment(file) if file is not None else None
    with made_up(shape, like, installed_engine()[0] or "gpu") as files:
        of = files[PEAGLE]
        yield files, read_acceptance(acceptance, drafted or of.speculation.depth_max, of.resources.accelerator)


@app.command()
def dispatch(
    replicas: Annotated[int, typer.Option(min=1, help="Replicas in each policy's fleet.")] = 4,
    slow: Annotated[int, typer.Option(min=0, help="Number of replicas that run at half speed.")] = 1,
    callers: Annotated[int, typer.Option(min=1, help="Number of dispatching processes, like ingresses.")] = 2,
    requests: Annotated[int, typer.Option(min=1, help="Requests per run.")] = 200,
    per_second: Annotated[float, typer.Option(min=0.1, help="Mean requests per second.")] = 6.5,
    repeats: Annotated[int, typer.Option(min=1, help="Measured repeats; the report has their median.")] = 5,
    policies: Annotated[str, typer.Option(help=f"Some of {','.join(COMPARED)}; by default all.")] = "",
    out: Out = None,
) -> None:
    """Compare the platform's dispatch policies with Ray Serve's default and with round robin.

    Uses real Ray Serve and the real request router; replicas only simulate an engine's step times, so that many fit on
    a small machine. Requests are short and long, and half of them share prefixes. In each repeat every policy gets the
    same requests. Writes result.json, report.md and the cluster's log.

    Example: peagle bench dispatch --replicas 8 --slow 1 --requests 400 --per-second 14
    """
    if slow > replicas:
        raise ConfigError("--slow", slow, f"there are only {replicas} replicas", "Lower it to at most that number.")
    chosen = compared(_names(policies))
    with _measuring(out, "cluster.log") as (folder, terminal):
        from peagle.bench.dispatch.dispatch_session import DispatchOptions, compare_dispatch

        options = DispatchOptions(replicas, slow, callers, requests, per_second, repeats, chosen)
        compare_dispatch(options, folder, terminal)


@app.command()
@partial(take_load, without=("skip_loops",), prompts=96)
def overhead(
    file: File,
    sides: Annotated[str, typer.Option(help="Sides to compare, separated by commas.")] = "vllm,peagle,peagle-unmetered",
    concurrency: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,8,32",
    out: GoOn = None,
    *,
    load: LoadOptions,
) -> None:
    """Compare the platform with vLLM's own server on the same engine.

    Runs real servers, each with all its processes: vllm, peagle (`peagle serve`) and peagle-unmetered (the same server
    with counting paused). They stay up and take turns, prompt set by prompt set. Measures throughput, TTFT, ITL, and
    CPU time by process. One replica at the file's static K, streaming completions, greedy, fixed output length.
    Writes result.json, report.md, pictures and the servers' logs.

    After Ctrl-C the same command resumes the run.

    Example: peagle bench overhead deployments/embedded.yaml --concurrency 1,8
    """
    from peagle.bench.servers.overhead_session import OverheadJob

    _run(OverheadJob.of(load_deployment(file), _names(sides), _numbers("--concurrency", concurrency), load), out)


@app.command()
@partial(take_load, without=("skip_loops", "restart_every", "eager"))
def endpoints(
    url: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]URL...", help="Running servers, the reference first."),
    ],
    model: Annotated[str | None, typer.Option(help="Model to measure; by default the first of each server.")] = None,
    depths: Annotated[
        str,
        typer.Option(
            help="Also pin the platform's adaptive depth to each of these K, separated by commas; 0 drafts nothing."
        ),
    ] = "",
    concurrency: Annotated[str, typer.Option(help="Requests at once, with commas.")] = "1,8",
    out: GoOn = None,
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Price of a whole endpoint per hour, in any currency; adds the cost of a million tokens."
        ),
    ] = None,
    *,
    load: LoadOptions,
) -> None:
    """Measure running servers, peagle's or vLLM's own, from the client's side.

    They take turns, prompt set by prompt set. Measures throughput, TTFT, ITL, and draft results from their metrics.
    Greedy streamed answers of a fixed length. Set PEAGLE_API_KEY if they require a key. Writes result.json, report.md
    and pictures.

    With --depths, run it on the server's machine: the model's K is pinned for each of those passes and released to the
    Router after it. Other clients of the server get the same K during that time.

    After Ctrl-C the same command resumes the run.

    Example: peagle bench endpoints http://127.0.0.1:8000 --depths 0,3,7 --concurrency 1,8
    Example: peagle bench endpoints vllm=http://one:8000 peagle=http://two:8000 --prompts-from question.jsonl
    """
    from peagle.bench.servers.endpoint_session import EndpointJob

    held = _numbers("--depths", depths, least=0) if depths else ()
    _run(EndpointJob.of(url, model, held, _numbers("--concurrency", concurrency), load, price_per_hour), out)


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="Folder of a result, or its result.json.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="Folder of the reference result, or its result.json.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Compare two results of `bench speculation` or `bench depth`, with confidence intervals.

    For each cell, it prints A's median tokens/s over B's, with a 95 % bootstrap interval from the repeats of both. A is
    faster or slower if the interval excludes 1, else the two cannot be distinguished. The interval covers variation
    between repeats, not between runs: a busier machine looks like a slower engine. Results with different prompts,
    targets or output lengths are refused.

    Example: peagle bench compare bench-results/before bench-results/after
    """
    from rich.console import Console

    from peagle.bench.core.difference import difference, difference_table, remarks
    from peagle.bench.core.output import read_result

    found = difference(read_result(a), read_result(b))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    console = Console(highlight=False)
    console.print(difference_table(found["rows"]))
    for line in remarks(found):
        console.print(line, markup=False)


def _run(job: "Job", out: Path | None) -> None:
    from peagle.bench.core.journal import unfinished
    from peagle.bench.core.session import run_job

    with _measuring(out or unfinished(RESULTS, job.settings), job.log) as (folder, terminal):
        asyncio.run(run_job(job, folder, terminal))


@contextmanager
def _measuring(out: Path | None, log: str) -> Iterator[tuple[Path, Terminal]]:
    """Yield a folder for the results, and a terminal with a new log in it."""
    folder = out or RESULTS / datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
    make_folder("--out", folder)
    # SIGTERM unwinds like Ctrl-C, so that started processes end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stem, _, suffix = log.partition(".")
    names = chain([log], (f"{stem}-{number}.{suffix}" for number in count(2)))
    with Terminal(next(path for name in names if not (path := folder / name).exists())) as terminal:
        yield folder, terminal


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _numbers(option: str, text: str, least: int = 1) -> tuple[int, ...]:
    """Parse integers of at least `least`, in the given order, without duplicates. Raises ConfigError if invalid."""
    try:
        numbers = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < least:
        problem = f"it is not a list of numbers from {least} up"
        raise ConfigError(option, text, problem, "Separate them with commas, such as 1,3,7.")
    return numbers
