"""One comparison from start to report: engines up, prompts chosen, passes timed, results written, engines down."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Self

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from peagle.bench.core import machine
from peagle.bench.core.bench_settings import digest, settings_of, weights_of
from peagle.bench.core.journal import Journal, Sitting
from peagle.bench.core.options import Comparison
from peagle.bench.core.output import result_head, write_results
from peagle.bench.core.rows import best_rows, fastest_rows, result_rows
from peagle.bench.core.workloads import read_prompts
from peagle.bench.engines.engine_plan import NONE, EnginePlan, Variant, plan_engines, variants_of
from peagle.bench.engines.shifting import (
    MOST_AT_ONCE,
    Phase,
    TakeKey,
    assemble_takes,
    make_phases,
    measure_shifting,
    planned_takes,
    shifting_rows,
)
from peagle.bench.engines.speculation import PassKey, assemble, measure, planned_passes, select_prompts, warmup_passes
from peagle.config import Deployment
from peagle.engine.arguments import drafts_to_depth
from peagle.engine.checks.drafter_checks import check_checkpoints
from peagle.errors import ConfigError, StartupError
from peagle.host.terminal import Terminal
from peagle.prompt_file import Prompt

if TYPE_CHECKING:
    from peagle.bench.engines.vllm_engines import Engine

IDLE_SECONDS = 3.0
IDLE_CORES_ALLOWED = 0.1
"""More than this, used by engines that nothing is asked of, slows the engine that is being timed."""


@dataclass(frozen=True, slots=True)
class Job:
    """A comparison, worked out: its engines, the texts that prompts are taken from, and its settings."""

    deployment: Deployment
    comparison: Comparison
    plans: Sequence[EnginePlan]
    texts: Sequence[Prompt]
    settings: dict[str, Any]

    @classmethod
    def of(cls, deployment: Deployment, baseline: Deployment | None, comparison: Comparison) -> Self:
        """Raises ConfigError where the options do not fit the files or the prompts."""
        load = comparison.load
        load.check(comparison.concurrencies)
        plans = plan_engines(
            deployment,
            baseline,
            comparison.methods,
            comparison.depths,
            eager=load.eager,
            adaptive=comparison.adaptive,
            fixed=comparison.fixed,
        )
        for plan in plans:
            check_checkpoints(plan.deployment)
        if load.skip_loops is not None and all(plan.method != NONE for plan in plans):
            asked = ",".join(comparison.methods)
            raise ConfigError("--methods", asked, "--skip-loops asks the engine none", "Add none.")
        texts = read_prompts(load.prompts_from, as_chat=load.chat)
        return cls(deployment, comparison, plans, texts, settings_of(plans, comparison, texts, machine.identity()))

    @property
    def variants(self) -> list[Variant]:
        return variants_of(self.plans, adaptive=self.comparison.adaptive, held=self.comparison.fixed)

    def planned(self, journal: Journal) -> list[PassKey]:
        """Every measured pass; none while the prompts have not been chosen."""
        if journal.selection is None:
            return []
        levels, repeats = self.comparison.concurrencies, self.comparison.load.repeats
        return planned_passes(self.variants, journal.selection.prompts, levels, repeats)

    @property
    def planned_takes(self) -> list[TakeKey]:
        return planned_takes(self.shifting_variants, self.comparison.load.repeats) if self.comparison.shifting else []

    @property
    def shifting_variants(self) -> list[Variant]:
        """What running the rule costs shows under steady load."""
        return [each for each in self.variants if not each.held]

    def remaining(self, journal: Journal) -> tuple[list[PassKey], list[TakeKey]]:
        """The passes and takes that have not been made yet."""
        passes = [key for key in self.planned(journal) if key not in journal.passes]
        return passes, [key for key in self.planned_takes if key not in journal.takes]

    def next(self, journal: Journal) -> tuple[list[PassKey], list[TakeKey]]:
        """Those of them that the same engines make, before they start anew."""
        passes, takes = self.remaining(journal)
        repeats = self.comparison.load.next_repeats([*(key.repeat for key in passes), *(key.repeat for key in takes)])
        return [key for key in passes if key.repeat in repeats], [key for key in takes if key.repeat in repeats]


async def compare(job: Job, folder: Path, terminal: Terminal, price_per_hour: float | None = None) -> None:
    """Measure what `folder` does not have yet, print the table and write the results beside it.

    Raises:
        ConfigError: The folder holds a run with other settings, or the options do not fit the engines.
        StartupError: An engine does not start, or fails.
    """
    with Journal.open(folder, job.settings) as journal:
        if kept := len(journal.passes) + len(journal.takes):
            terminal.say(f"Going on in {folder}: {kept} measured passes are there.")
        if journal.selection is None or any(job.remaining(journal)):
            try:
                await _measure(job, journal, terminal)
                while any(job.remaining(journal)):
                    await _measure(job, journal, terminal)
            finally:
                _say_what_remains(job, journal, folder, terminal)
        result = _result(job, journal, price_per_hour)
    write_results(result, folder, terminal)


async def _measure(job: Job, journal: Journal, terminal: Terminal) -> None:
    with terminal.stage("Load vLLM"):
        from peagle.bench.engines.vllm_engines import idle_cpu_ratio
    load_before = machine.load()
    engines: list[Engine] = []
    try:
        _start(job, engines, terminal)
        idle_cores = await idle_cpu_ratio(IDLE_SECONDS)
        journal.sit(Sitting(load_before, idle_cores))
        if idle_cores > IDLE_CORES_ALLOWED:
            terminal.say(f"Idle engines keep {idle_cores:.2f} cores busy, which slows the one that is timed.")
        # Prompts that do not fit are said before the long part.
        phases = _phases(job, engines[0]) if job.comparison.shifting else []
        await _choose_prompts(job, journal, engines, terminal)
        await _time_passes(job, journal, engines, terminal)
        if phases:
            await _time_takes(job, journal, engines, phases, terminal)
    except ExceptionGroup as failures:
        problem = f"an engine failed under load ({failures.exceptions[0]!r})"
        raise StartupError(problem, f"{terminal.log} says why.") from failures
    finally:
        for engine in engines:
            engine.stop()


def _start(job: Job, engines: "list[Engine]", terminal: Terminal) -> None:
    """Append an engine for each plan to `engines`, so that a failure leaves those that did start to be stopped."""
    from peagle.bench.engines.vllm_engines import Engine

    comparison = job.comparison
    for number, plan in enumerate(job.plans, start=1):
        with terminal.stage(f"Start engine {number} of {len(job.plans)}: {plan.name}"):
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


async def _choose_prompts(job: Job, journal: Journal, engines: "Sequence[Engine]", terminal: Terminal) -> None:
    if journal.selection is not None:
        return
    load = job.comparison.load
    chooser = next((engine for engine in engines if engine.plan.method == NONE), engines[0])
    with terminal.stage("Choose prompts"):
        journal.select(await select_prompts(job.texts, load.prompts, load.tokens, chooser, load.skip_loops))


async def _time_passes(job: Job, journal: Journal, engines: "Sequence[Engine]", terminal: Terminal) -> None:
    assert journal.selection is not None, "prompts are chosen first"
    todo, _ = job.next(journal)
    prompts = journal.selection.prompts
    warmup = warmup_passes(job.variants, prompts, todo, job.comparison.load.warmup)
    with progress_bar(terminal, len(journal.passes), len(warmup) + len(todo)) as begin:
        await measure(engines, job.variants, prompts, warmup=warmup, todo=todo, begin=begin, keep=journal.keep_pass)


def _phases(job: Job, engine: "Engine") -> list[Phase]:
    longest = engine.context_tokens - job.comparison.load.tokens
    return make_phases(job.texts, engine.encode, engine.vocabulary, longest)


async def _time_takes(
    job: Job, journal: Journal, engines: "Sequence[Engine]", phases: Sequence[Phase], terminal: Terminal
) -> None:
    """Measure every variant while load and prompts shift."""
    _, todo = job.next(journal)
    with progress_bar(terminal, len(journal.takes) * len(phases), len(todo) * len(phases)) as begin:
        await measure_shifting(engines, job.shifting_variants, phases, todo=todo, begin=begin, keep=journal.keep_take)


def _say_what_remains(job: Job, journal: Journal, folder: Path, terminal: Terminal) -> None:
    passes, takes = job.remaining(journal)
    kept = len(journal.passes) + len(journal.takes)
    if kept and (passes or takes):
        terminal.say(
            f"{kept} of {kept + len(passes) + len(takes)} measured passes are kept. "
            f"Give the same command with --out {folder} to go on."
        )


def _result(job: Job, journal: Journal, price_per_hour: float | None) -> dict[str, Any]:
    selection, load, target = journal.selection, job.comparison.load, job.deployment.target
    assert selection is not None, "prompts are chosen before anything is complete"
    runs = assemble(job.variants, job.planned(journal), journal.passes)
    takes = assemble_takes(job.shifting_variants, job.planned_takes, journal.takes) if job.comparison.shifting else {}
    return {
        **result_head("speculation", journal, load),
        "model": job.deployment.name,
        "target": weights_of(target),
        "idle_cores": max(each.idle_cores for each in journal.sittings),
        "eager": load.eager,
        "prompts": {
            "count": len(selection.prompts),
            "digest": digest(selection.prompts),
            "tokens_median": int(median(len(prompt) for prompt in selection.prompts)),
            "examined": selection.examined,
            "too_long": selection.too_long,
            "looping": selection.looping,
            "min_distinct_share": load.skip_loops,
        },
        "drafts_to_depth": any(drafts_to_depth(plan.deployment) for plan in job.plans),
        "price_per_hour": price_per_hour,
        "gpus_per_engine": job.deployment.devices,
        "rows": result_rows(runs, price_per_hour and price_per_hour * job.deployment.devices),
        "best": best_rows(runs),
        "fastest": fastest_rows(runs),
        "shifting": shifting_rows(takes),
    }


@contextmanager
def progress_bar(terminal: Terminal, done: int, todo: int) -> Iterator[Callable[[str], None]]:
    """A bar over all steps, `done` of them already; what it yields is called with each one's name as that begins."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal.console) as progress:
        task = progress.add_task("", total=done + todo, completed=done)
        begun = done

        def begin(name: str) -> None:
            nonlocal begun
            progress.update(task, description=name, completed=begun)
            begun += 1

        yield begin
        progress.update(task, description="done", completed=done + todo)
