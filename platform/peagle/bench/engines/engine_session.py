"""One comparison of engines from start to report: engines up, prompts chosen, passes timed, engines down."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from peagle.bench.core import machine
from peagle.bench.core.bench_settings import deployment_settings, flat_settings, load_settings, weights_of
from peagle.bench.core.closed_loop import Trace
from peagle.bench.core.journal import Journal, Sitting
from peagle.bench.core.options import LoadOptions
from peagle.bench.core.output import prompt_figures, result_head
from peagle.bench.core.records import NONE, Run
from peagle.bench.core.session import IDLE_CORES_ALLOWED, IDLE_SECONDS, Job, progress_bar, time_passes
from peagle.bench.core.turns import assemble
from peagle.bench.core.workloads import read_prompts
from peagle.bench.engines.engine_plan import EnginePlan, Variant, plan_engines, variants_of
from peagle.bench.engines.made_up import random_prompts
from peagle.bench.engines.shifting import (
    MOST_AT_ONCE,
    Phase,
    Take,
    TakeKey,
    assemble_takes,
    make_phases,
    measure_shifting,
    noise,
    planned_takes,
    shifting_rows,
)
from peagle.bench.engines.speculation import EnginePass, Selected, Selection, one_pass, select_prompts
from peagle.bench.engines.speculation_report import FORM
from peagle.bench.engines.speculation_rows import best_rows, fastest_rows, result_rows
from peagle.bench.engines.step_costs import StepCosts, cost_rows, times_since
from peagle.config import Deployment
from peagle.engine.arguments import drafts_to_depth
from peagle.engine.checks.drafter_checks import check_checkpoints
from peagle.errors import ConfigError, StartupError
from peagle.host.terminal import Terminal
from peagle.router.snapshot import StepCell

if TYPE_CHECKING:
    from peagle.bench.engines.vllm_engines import Engine

# By prompt that is wanted: greedy output after random tokens often loops.
_NOISES_TRIED = 20


@dataclass(frozen=True, slots=True)
class EngineJob(Job):
    """A comparison of engines in this process, with `shifting` also under shifting load and prompts.

    If it is `mixed`, every second prompt is noise.
    """

    entries = (Selected, EnginePass, Take, StepCosts)
    form = FORM
    log = "engines.log"
    variants: Sequence[Variant]
    deployment: Deployment
    plans: Sequence[EnginePlan]
    shifting: bool
    mixed: bool
    price_per_hour: float | None
    acceptance: tuple[float, ...] | None = None
    made_up: bool = False

    @classmethod
    def of(
        cls,
        deployment: Deployment,
        baseline: Deployment | None,
        methods: Sequence[str],
        depths: Sequence[int],
        concurrencies: Sequence[int],
        load: LoadOptions,
        *,
        adaptive: bool = False,
        shifting: bool = False,
        mixed: bool = False,
        fixed: int | None = None,
        price_per_hour: float | None = None,
        acceptance: tuple[float, ...] | None = None,
        made_up: bool = False,
    ) -> Self:
        """Compare `methods`, or all methods of the files if empty.

        With `adaptive`, live engines are also measured with the K that the Router's rule chooses; with `shifting`, all
        are measured again under shifting load and prompts; with `fixed`, also the rule held at that K, and an engine
        with that fixed K. With `acceptance`, drafts are accepted by that curve. If the weights are `made_up`, prompts
        are random tokens.

        Raises ConfigError if the options are inconsistent with the files or the prompts.
        """
        load.check(concurrencies)
        if made_up:
            _refuse_texts(load, shifting)
        how: dict[str, Any] = {"eager": load.eager, "adaptive": adaptive, "fixed": fixed, "acceptance": acceptance}
        plans = plan_engines(deployment, baseline, methods, depths, **how)
        for plan in plans:
            check_checkpoints(plan.deployment)
        if load.skip_loops is not None and all(plan.method != NONE for plan in plans):
            raise ConfigError("--methods", ",".join(methods), "--skip-loops needs the engine none", "Add none.")
        texts = [] if made_up else read_prompts(load.prompts_from, as_chat=load.chat)
        settings = {
            "engines": [plan.name for plan in plans],
            "--concurrency": list(concurrencies),
            "--depths": list(depths),
            **load_settings(load, texts),
            "adaptive": adaptive,
            "--fixed": fixed,
            "--shifting": shifting,
            "--mixed": mixed,
            "--acceptance": list(acceptance or ()),
            "machine": machine.identity(),
            **{plan.name: deployment_settings(plan.deployment) for plan in plans},
        }
        variants = variants_of(plans, adaptive=adaptive, held=fixed)
        return cls(
            variants,
            concurrencies,
            load,
            texts,
            flat_settings(settings),
            deployment,
            plans,
            shifting,
            mixed,
            price_per_hour,
            acceptance,
            made_up,
        )

    @property
    def planned_takes(self) -> list[TakeKey]:
        return planned_takes(self.shifting_variants, self.load.repeats) if self.shifting else []

    @property
    def shifting_variants(self) -> list[Variant]:
        """Variants for shifting load, without held ones: the rule's cost is measured under steady load."""
        return [each for each in self.variants if not each.held]

    def remaining(self, journal: Journal) -> list[Any]:
        return [key for key in (*self.planned(journal), *self.planned_takes) if key not in journal.made]

    async def measure(self, journal: Journal, folder: Path, terminal: Terminal) -> None:
        with terminal.stage("Load vLLM"):
            from peagle.bench.engines.vllm_engines import idle_cpu_ratio
        load_before = machine.load()
        engines: list[Engine] = []
        try:
            _start(self, engines, terminal)
            for engine in engines:
                with terminal.stage(f"Warm up {engine.plan.name}"):
                    await engine.warm_up()
            idle_cores = await idle_cpu_ratio(IDLE_SECONDS)
            journal.keep(Sitting(load_before, idle_cores))
            if idle_cores > IDLE_CORES_ALLOWED:
                terminal.say(f"Idle engines keep {idle_cores:.2f} cores busy, which slows down the timed engine.")
            # Prompts that do not fit are reported before the long part.
            phases = _phases(self, engines[0]) if self.shifting else []
            if journal.chosen is None:
                await _choose_prompts(self, journal, engines, terminal)

            async def make(variant: Variant, prompts: list[list[int]], concurrency: int) -> Run[Trace]:
                return await one_pass(engines[variant.engine], variant, prompts, concurrency)

            before = [await engine.step_cells() for engine in engines]
            await time_passes(self, journal, terminal, make, EnginePass)
            await _keep_costs(journal, engines, before)
            if phases:
                await _time_takes(self, journal, engines, phases, terminal)
        except ExceptionGroup as failures:
            problem = f"an engine failed under load ({failures.exceptions[0]!r})"
            raise StartupError(problem, f"See {terminal.log}.") from failures
        finally:
            for engine in engines:
                engine.stop()

    def result(self, journal: Journal) -> dict[str, Any]:
        runs = assemble(self.variants, self.planned(journal), journal.made)
        takes = assemble_takes(self.shifting_variants, self.planned_takes, journal.made) if self.shifting else {}
        return {
            **result_head("speculation", journal, self.load),
            "model": self.deployment.name,
            "target": weights_of(self.deployment.target),
            "idle_cores": max(each.idle_cores for each in journal.sittings),
            "eager": self.load.eager,
            "prompts": prompt_figures(journal)
            | {"looping": journal.chosen.looping, "min_distinct_share": self.load.skip_loops},
            "drafts_to_depth": any(drafts_to_depth(plan.deployment) for plan in self.plans),
            "price_per_hour": self.price_per_hour,
            "gpus_per_engine": self.deployment.devices,
            "acceptance": self.acceptance,
            "cost_table": cost_rows(journal),
            "rows": result_rows(runs, self.price_per_hour and self.price_per_hour * self.deployment.devices),
            "best": best_rows(runs),
            "fastest": fastest_rows(runs),
            "shifting": shifting_rows(takes),
        }


def _refuse_texts(load: LoadOptions, shifting: bool) -> None:
    """Raise ConfigError for an option about texts, because a model with random weights has none."""
    asked = {
        "--prompts-from": load.prompts_from is not None,
        "--chat": load.chat,
        "--skip-loops": load.skip_loops is not None,
        "--shifting": shifting,
    }
    for option in (name for name, given in asked.items() if given):
        raise ConfigError(option, None, "a shape has random prompts instead of text", "Omit it.")


async def _keep_costs(journal: Journal, engines: "Sequence[Engine]", before: Sequence[Sequence[StepCell]]) -> None:
    """Record the times of steps counted since `before`."""
    for engine, earlier in zip(engines, before, strict=True):
        if times := times_since(await engine.step_cells(), earlier):
            journal.keep(StepCosts(times))


def _start(job: EngineJob, engines: "list[Engine]", terminal: Terminal) -> None:
    """Append an engine per plan to `engines`, so that after a failure the started engines can be stopped."""
    from peagle.bench.engines.vllm_engines import Engine

    for number, plan in enumerate(job.plans, start=1):
        with terminal.stage(f"Start engine {number} of {len(job.plans)}: {plan.name}"):
            engine = Engine.start(plan, job.load.tokens, terminal.log)
            engines.append(engine)
        most = max([*job.concurrencies, *([MOST_AT_ONCE] if job.shifting else [])])
        if engine.requests_at_once < most:
            raise ConfigError(
                "--shifting" if most > max(job.concurrencies) else "--concurrency",
                most,
                f"engine.max_num_seqs of {plan.deployment.name} is {engine.requests_at_once}",
                "Lower --concurrency, or raise engine.max_num_seqs.",
            )


async def _choose_prompts(job: EngineJob, journal: Journal, engines: "Sequence[Engine]", terminal: Terminal) -> None:
    load = job.load
    chooser = next((engine for engine in engines if engine.plan.method == NONE), engines[0])
    with terminal.stage("Choose prompts"):
        if job.made_up:
            prompts = random_prompts(chooser.vocabulary, load.prompts)
            chosen = Selection(prompts, len(prompts), too_long=0, looping=0)
        else:
            texts = map(chooser.encode, job.texts)
            chosen = await select_prompts(texts, load.prompts, load.tokens, chooser, load.skip_loops)
        if job.mixed:
            wanted = len(chosen.prompts[::2])
            noises = islice(noise(chooser.vocabulary), _NOISES_TRIED * wanted)
            noisy = await select_prompts(noises, wanted, load.tokens, chooser, load.skip_loops)
            chosen = chosen.mixed_with(noisy)
        journal.keep(Selected(chosen))


def _phases(job: EngineJob, engine: "Engine") -> list[Phase]:
    return make_phases(job.texts, engine.encode, engine.vocabulary, engine.context_tokens - job.load.tokens)


async def _time_takes(
    job: EngineJob, journal: Journal, engines: "Sequence[Engine]", phases: Sequence[Phase], terminal: Terminal
) -> None:
    """Measure every variant under shifting load and prompts."""
    done, todo = ([key for key in keys if isinstance(key, TakeKey)] for keys in (journal.made, job.next(journal)))
    with progress_bar(terminal, len(done) * len(phases), len(todo) * len(phases)) as begin:
        await measure_shifting(engines, job.shifting_variants, phases, todo=todo, begin=begin, keep=journal.keep)
