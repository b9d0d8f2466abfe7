"""One comparison from start to report: engines up, prompts chosen, passes timed, results written, engines down."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from peagle.bench import machine
from peagle.bench.engines import Engine, idle_cpu_ratio
from peagle.bench.options import Comparison, LoadOptions
from peagle.bench.plan import NONE, EnginePlan, Variant, plan_engines, variants_of
from peagle.bench.report import (
    SCHEMA_VERSION,
    best_line,
    best_rows,
    markdown,
    result_rows,
    result_table,
    shifting_line,
)
from peagle.bench.shifting import MOST_AT_ONCE, make_phases, measure_shifting, shifting_rows
from peagle.bench.speculation import Cell, Run, Selection, measure, passes, select_prompts
from peagle.bench.workloads import read_prompts
from peagle.config import Deployment
from peagle.errors import ConfigError, StartupError
from peagle.serve.terminal import Terminal

IDLE_SECONDS = 3.0
IDLE_CORES_ALLOWED = 0.1
"""More than this, used by engines that nothing is asked of, slows the engine that is being timed."""


async def compare(
    deployment: Deployment, baseline: Deployment | None, comparison: Comparison, folder: Path, terminal: Terminal
) -> None:
    """Run the comparison, print its table and write `result.json` and `report.md` into `folder`.

    Raises:
        ConfigError: The options do not fit the files or the prompts.
        StartupError: An engine does not start.
    """
    load = comparison.load
    plans = plan_engines(
        deployment, baseline, comparison.methods, comparison.depths, eager=load.eager, adaptive=comparison.adaptive
    )
    if load.skip_loops is not None and all(plan.method != NONE for plan in plans):
        raise ConfigError("--methods", ",".join(comparison.methods), "--skip-loops asks the engine none", "Add none.")
    texts = read_prompts(load.prompts_from)
    context: dict[str, Any] = {"model": deployment.name, "hardware": machine.hardware()}
    engines: list[Engine] = []
    try:
        _start(plans, comparison, engines, terminal)
        context["idle_cores"] = await idle_cpu_ratio(IDLE_SECONDS)
        if context["idle_cores"] > IDLE_CORES_ALLOWED:
            terminal.say(
                f"Idle engines keep {context['idle_cores']:.2f} cores busy, which slows the one that is timed."
            )
        chooser = next((engine for engine in engines if engine.plan.method == NONE), engines[0])
        with terminal.stage("Choose prompts"):
            selection = await select_prompts(texts, load.prompts, load.tokens, chooser, load.skip_loops)
        variants = variants_of(plans, adaptive=comparison.adaptive)
        concurrencies = comparison.concurrencies
        total = passes(len(variants), selection.prompts, concurrencies, load.repeats, load.warmup)
        with _progress(terminal, total) as begin:
            runs = await measure(
                engines,
                variants,
                selection.prompts,
                concurrencies,
                repeats=load.repeats,
                warmup_sets=load.warmup,
                begin=begin,
            )
        shifting = await _shifting(comparison, texts, engines, variants, terminal) if comparison.shifting else []
    except ExceptionGroup as failures:
        problem = f"an engine failed under load ({failures.exceptions[0]!r})"
        raise StartupError(problem, f"{terminal.log} says why.") from failures
    finally:
        for engine in engines:
            engine.stop()
    result = _result(context, load, selection, runs) | {"shifting": shifting}
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    (folder / "report.md").write_text(markdown(result), encoding="utf-8")
    terminal.console.print(result_table(result["rows"]), soft_wrap=False)
    for row in result["best"]:
        terminal.say(best_line(row))
    for row in shifting:
        terminal.say(shifting_line(row))
    terminal.say(f"Written: {folder}/report.md and result.json")


async def _shifting(
    comparison: Comparison,
    texts: Sequence[str],
    engines: Sequence[Engine],
    variants: Sequence[Variant],
    terminal: Terminal,
) -> list[dict[str, Any]]:
    """Measure every variant while load and prompts shift; the rows of the result."""
    engine, repeats = engines[0], comparison.load.repeats
    phases = make_phases(texts, engine.encode, engine.vocabulary, engine.context_tokens - comparison.load.tokens)
    with _progress(terminal, len(variants) * len(phases) * repeats) as begin:
        return shifting_rows(await measure_shifting(engines, variants, phases, repeats, begin))


def _start(plans: Sequence[EnginePlan], comparison: Comparison, engines: list[Engine], terminal: Terminal) -> None:
    """Append an engine for each plan to `engines`, so that a failure leaves those that did start to be stopped."""
    for number, plan in enumerate(plans, start=1):
        with terminal.stage(f"Start engine {number} of {len(plans)}: {plan.name}"):
            engine = Engine.start(plan, comparison.load.tokens, terminal.log)
            engines.append(engine)
        most = max([*comparison.concurrencies, *([MOST_AT_ONCE] if comparison.shifting else [])])
        if engine.requests_at_once < most:
            raise ConfigError(
                "--shifting" if most > max(comparison.concurrencies) else "--concurrency",
                most,
                f"engine.max_num_seqs of {plan.deployment.name} is {engine.requests_at_once}",
                "Lower the one or raise the other.",
            )


def _result(
    context: Mapping[str, Any], load: LoadOptions, selection: Selection, runs: Mapping[Cell, Sequence[Run]]
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(["peagle", *sys.argv[1:]]),
        "commit": machine.commit(),
        "versions": machine.versions(),
        **context,
        "eager": load.eager,
        "repeats": load.repeats,
        "output_tokens": load.tokens,
        "prompts": {
            "count": len(selection.prompts),
            "tokens_median": int(median(len(prompt) for prompt in selection.prompts)),
            "examined": selection.examined,
            "too_long": selection.too_long,
            "looping": selection.looping,
            "min_distinct_share": load.skip_loops,
        },
        "rows": result_rows(runs),
        "best": best_rows(runs),
    }


@contextmanager
def _progress(terminal: Terminal, total: int) -> Iterator[Callable[[str], None]]:
    """A bar over `total` steps; what it yields is called with the name of each step as that begins."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal.console) as progress:
        task = progress.add_task("", total=total)
        begun = 0

        def begin(name: str) -> None:
            nonlocal begun
            progress.update(task, description=name, completed=begun)
            begun += 1

        yield begin
        progress.update(task, description="done", completed=total)
