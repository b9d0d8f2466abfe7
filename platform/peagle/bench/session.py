"""One comparison from start to report: engines up, prompts chosen, passes timed, results written, engines down."""

import json
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from peagle.bench import machine
from peagle.bench.engines import Engine, idle_cpu_ratio
from peagle.bench.options import SpeculationOptions
from peagle.bench.plan import NONE, EnginePlan, plan_engines, variants_of
from peagle.bench.report import SCHEMA_VERSION, best_rows, markdown, result_rows, result_table
from peagle.bench.speculation import Cell, Run, Selection, measure, passes, select_prompts
from peagle.bench.workloads import read_prompts
from peagle.config import Deployment
from peagle.errors import ConfigError

IDLE_SECONDS = 3.0
IDLE_CORES_ALLOWED = 0.1
"""More than this, used by engines that nothing is asked of, slows the engine that is being timed."""


async def compare(
    deployment: Deployment, baseline: Deployment | None, options: SpeculationOptions, folder: Path
) -> None:
    """Run the comparison and write `result.json`, `report.md` and `engines.log` into `folder`, which exists.

    Raises:
        ConfigError: The options do not fit the files or the prompts.
        StartupError: An engine does not start.
    """
    plans = plan_engines(deployment, baseline, options.methods, options.depths, eager=options.eager)
    if options.min_distinct_share is not None and all(plan.method != NONE for plan in plans):
        raise ConfigError("--methods", ",".join(options.methods), "--skip-loops asks the engine none", "Add none.")
    texts = read_prompts(options.prompts_from)
    variants = variants_of(plans)
    hardware = machine.hardware()
    log = folder / "engines.log"
    engines: list[Engine] = []
    with _output_to(log) as (terminal, errors):
        try:
            _start(plans, options, engines, log, errors)
            idle_cores = await idle_cpu_ratio(IDLE_SECONDS)
            if idle_cores > IDLE_CORES_ALLOWED:
                errors.print(f"Idle engines keep {idle_cores:.2f} cores busy, which slows the one that is measured.")
            errors.print("Choosing prompts")
            chooser = next((engine for engine in engines if engine.plan.method == NONE), engines[0])
            selection = await select_prompts(
                texts, options.prompts, options.output_tokens, chooser, options.min_distinct_share
            )
            total = passes(
                len(variants), selection.prompts, options.concurrencies, options.repeats, options.warmup_sets
            )
            with _progress(errors, total) as advance:
                runs = await measure(
                    engines,
                    variants,
                    selection.prompts,
                    options.concurrencies,
                    repeats=options.repeats,
                    warmup_sets=options.warmup_sets,
                    advance=advance,
                )
        finally:
            for engine in engines:
                engine.stop()
        context = {"hardware": hardware, "idle_cores": idle_cores, "model": deployment.name}
        result = _result(context, options, selection, runs)
        (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        (folder / "report.md").write_text(markdown(result), encoding="utf-8")
        terminal.print(result_table(result["rows"]))
        terminal.print(f"Written: {folder}/report.md and result.json")


def _start(
    plans: Sequence[EnginePlan], options: SpeculationOptions, engines: list[Engine], log: Path, errors: Console
) -> None:
    """Append an engine for each plan to `engines`, so that a failure leaves those that did start to be stopped."""
    for number, plan in enumerate(plans, start=1):
        errors.print(f"Starting engine {number} of {len(plans)}: {plan.name}")
        engine = Engine.start(plan, options.output_tokens, log)
        engines.append(engine)
        if engine.requests_at_once < max(options.concurrencies):
            raise ConfigError(
                "--concurrency",
                max(options.concurrencies),
                f"engine.max_num_seqs of {plan.deployment.name} is {engine.requests_at_once}",
                "Lower the one or raise the other.",
            )


def _result(
    context: Mapping[str, Any], options: SpeculationOptions, selection: Selection, runs: Mapping[Cell, Sequence[Run]]
) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(["peagle", *sys.argv[1:]]),
        "commit": machine.commit(),
        "versions": machine.versions(),
        **context,
        "eager": options.eager,
        "repeats": options.repeats,
        "output_tokens": options.output_tokens,
        "prompts": {
            "count": len(selection.prompts),
            "tokens_median": int(median(len(prompt) for prompt in selection.prompts)),
            "examined": selection.examined,
            "too_long": selection.too_long,
            "looping": selection.looping,
            "min_distinct_share": options.min_distinct_share,
        },
        "rows": result_rows(runs),
        "best": best_rows(runs),
    }


@contextmanager
def _progress(console: Console, total: int) -> Iterator[Any]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=total)
        started = 0

        def advance(name: str) -> None:
            nonlocal started
            progress.update(task, description=name, completed=started)
            started += 1

        yield advance
        progress.update(task, description="done", completed=total)


@contextmanager
def _output_to(path: Path) -> Iterator[tuple[Console, Console]]:
    """Send what this process and its children print to `path`; yields consoles for the real stdout and stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = os.dup(1), os.dup(2)
    with path.open("wb") as log, os.fdopen(os.dup(1), "w") as out, os.fdopen(os.dup(2), "w") as err:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        try:
            yield Console(file=out), Console(file=err)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for descriptor, number in zip(saved, (1, 2), strict=True):
                os.dup2(descriptor, number)
                os.close(descriptor)
