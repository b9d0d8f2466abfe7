"""Real vLLM engines to measure, each with its core and worker in separate processes."""

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil  # type: ignore[import-untyped]
from vllm import AsyncEngineArgs, SamplingParams
from vllm.config import VllmConfig
from vllm.inputs import TokensPrompt
from vllm.sampling_params import RequestOutputKind
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.metrics.loggers import StatLoggerBase

from peagle.bench.core.statistics import NO_DRAFTS, DraftCounts
from peagle.bench.engines.engine_plan import EnginePlan
from peagle.bench.engines.made_up import synthetic_acceptance
from peagle.engine.arguments import without_server
from peagle.engine.depth import live_depth
from peagle.engine.depth.calibration import calibrate
from peagle.engine.depth.warm_up import warm_up
from peagle.errors import StartupError
from peagle.prompt_file import Prompt, encode_prompt
from peagle.router.depth import DepthLimits, DepthPlan, Mode, ModelDepths, StandingLimits
from peagle.router.snapshot import DepthTable, StepCell, StepReport, StepStats, StepTime
from peagle.serve.depth_settings import calibration_points, depth_settings
from peagle.serve.launch.serving_arguments import engine_settings
from peagle.serve.reporting import DepthReporter, keep_reporting

# vLLM's default step limits depend on the usage context; measured engines use those of served engines.
_SERVED = UsageContext.OPENAI_API_SERVER


class StepCounter(StatLoggerBase):  # type: ignore[misc]
    """Counts the steps that generated tokens, and sums vLLM's statistics of verified drafts."""

    def __init__(self, vllm_config: VllmConfig, engine_index: int = 0) -> None:
        self.counts = NO_DRAFTS
        self.steps = 0

    def record(self, scheduler_stats: Any, iteration_stats: Any, *args: Any, **kwargs: Any) -> None:
        # vLLM creates these only for a step that has outputs.
        if iteration_stats is not None:
            self.steps += 1
        stats = scheduler_stats.spec_decoding_stats if scheduler_stats else None
        if stats is not None:
            self.counts += DraftCounts(
                stats.num_drafts, tuple(stats.num_draft_tokens_per_pos), tuple(stats.num_accepted_tokens_per_pos)
            )

    def log_engine_initialized(self) -> None:
        pass


@dataclass(slots=True)
class _Rule:
    """The Router's rule for one engine, the end of its last turn, and its total waiting time between turns."""

    depths: ModelDepths
    reporter: DepthReporter = field(init=False)
    plan: DepthPlan | None = None
    left_s: float = field(default_factory=time.monotonic)
    waited_s: float = 0.0

    @property
    def now_s(self) -> float:
        return time.monotonic() - self.waited_s


class Engine:
    """One running engine. `start` needs a running event loop and blocks until the engine answers."""

    def __init__(self, plan: EnginePlan, llm: AsyncLLM, counters: Sequence[StepCounter], output_tokens: int) -> None:
        self.plan = plan
        self._llm = llm
        self._counters = counters
        self._output_tokens = output_tokens
        self._request_numbers = itertools.count()
        self._rules: dict[int | None, _Rule] = {}
        self._rule: _Rule | None = None
        self._calibration: tuple[StepTime, ...] | None = None
        self._version = 0
        self._step_stats = live_depth.StepStatsReader(llm)
        # Applied tables, and those that count as changes: trials count only if they are kept, from then on.
        self._applied: list[tuple[float, DepthTable]] = []
        self._tables: list[tuple[float, DepthTable]] = []

    @classmethod
    def start(cls, plan: EnginePlan, output_tokens: int, log: Path) -> "Engine":
        """Start an engine. Raises StartupError if vLLM does not start; its output is in `log`."""
        counters: list[StepCounter] = []

        def new_counter(vllm_config: VllmConfig, engine_index: int = 0) -> StepCounter:
            counters.append(StepCounter(vllm_config, engine_index))
            return counters[-1]

        arguments = without_server(engine_settings(plan.deployment))
        if plan.acceptance is not None:
            arguments["speculative_config"] |= synthetic_acceptance(plan.acceptance[: plan.drafted])
        # Forking a process that already runs an engine's threads can deadlock.
        environment = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn", **plan.deployment.environment}
        try:
            with _environment(environment):
                llm = AsyncLLM.from_engine_args(
                    AsyncEngineArgs(**arguments), usage_context=_SERVED, stat_loggers=[new_counter]
                )
        except (RuntimeError, ValueError, OSError) as error:
            first_line = str(error).strip().partition("\n")[0]
            raise StartupError(f"the engine for {plan.name} did not start ({first_line})", f"See {log}.") from error
        return cls(plan, llm, counters, output_tokens)

    @property
    def context_tokens(self) -> int:
        """Maximum tokens of prompt and answer together."""
        return int(self._llm.model_config.max_model_len)

    @property
    def requests_at_once(self) -> int:
        return int(self._llm.vllm_config.scheduler_config.max_num_seqs)

    @property
    def vocabulary(self) -> int:
        return int(self._llm.model_config.get_vocab_size())

    def encode(self, prompt: Prompt) -> list[int]:
        """Return the prompt's tokens. Raises ConfigError for a chat if the target has no chat template."""
        return encode_prompt(prompt, self._llm.get_tokenizer())

    def counts(self) -> DraftCounts:
        """Drafts verified since the engine started."""
        return sum((counter.counts for counter in self._counters), NO_DRAFTS)

    def steps(self) -> int:
        """Steps that generated tokens since the engine started."""
        return sum(counter.steps for counter in self._counters)

    async def warm_up(self) -> None:
        """Run everything that compiles at first use, as a replica does before it is ready."""
        await warm_up(self._llm, self.plan.deployment, lambda _done, _of: None)
        if self.plan.live:
            self._version = (await self._step_stats.read()).table.version

    async def step_stats(self) -> StepStats | None:
        """Return the sums over its steps; None if it keeps none."""
        return await self._step_stats.read() if self.plan.live else None

    async def step_cells(self) -> tuple[StepCell, ...]:
        """Return its decode-only steps so far, by batch size and K."""
        stats = await self.step_stats()
        return stats.cells if stats is not None else ()

    async def prepare(self, depth: int) -> None:
        """Set K and clear the prefix cache, so that passes start equal and all earlier statistics have arrived."""
        if self.plan.live:
            await self._apply(DepthTable(self._version + 1, (depth,)))
        await self.settle()

    @asynccontextmanager
    async def adapting(self, held: int | None = None) -> AsyncIterator[None]:
        """Let the Router's rule choose K while entered, as for a replica; it keeps its estimates for the next time.

        With `held`, it is a separate rule that is pinned to that K. A rule's clock stops between two uses, while other
        variants use the engine.
        """
        assert self.plan.live, "this engine has one K"
        await self._calibrate()
        self._rule = rule = self._rule_held(held)
        if rule.plan is not None:
            await self._apply(replace(rule.plan.table, version=self._version + 1))
        await rule.reporter.leave_out()
        rule.waited_s += time.monotonic() - rule.left_s
        reporting = asyncio.create_task(keep_reporting(rule.reporter.report))
        try:
            yield
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            rule.left_s = time.monotonic()

    async def _calibrate(self) -> None:
        """Time steps once, as a replica does before its first request."""
        if self._calibration is None:
            deployment = self.plan.deployment
            seconds = deployment.speculation.calibration_s
            points, by_request = calibration_points(deployment), depth_settings(deployment).by_request
            self._calibration = await calibrate(self._llm, *points, seconds, by_request=by_request) if seconds else ()
            self._version = (await self._step_stats.read()).table.version
            await self.settle()

    def _rule_held(self, depth: int | None) -> "_Rule":
        if depth not in self._rules:
            self._rules[depth] = rule = self._rule_of(ModelDepths(depth_settings(self.plan.deployment)))
            if depth is not None:
                rule.depths.limit(DepthLimits(pin=depth))
        return self._rules[depth]

    def _rule_of(self, depths: ModelDepths) -> "_Rule":
        """Return a rule with its own reporter, so that no other rule and no other variant's turn ends its trials."""
        rule = _Rule(depths)
        rule.reporter = DepthReporter(self._step_stats.read, self._apply, self._ask, now_s=lambda: rule.now_s)
        return rule

    def settled_s(self, concurrency: int, since_s: float) -> float:
        """Return the seconds from `since_s`, on the monotonic clock, to the last change of K at this concurrency, or 0.

        A trial of another K counts only if it is kept.
        """
        settled, depth = 0.0, None
        for at_s, table in self._tables:
            if depth is not None and at_s > since_s and table.depth_at(concurrency) != depth:
                settled = at_s - since_s
            depth = table.depth_at(concurrency)
        return settled

    def depth_changes(self, concurrency: int, since_s: float) -> int:
        """Count the changes of K at this concurrency since `since_s`, including both changes of a trial."""
        before = [table.depth_at(concurrency) for at_s, table in self._applied if at_s <= since_s]
        after = [table.depth_at(concurrency) for at_s, table in self._applied if at_s > since_s]
        return sum(one != other for one, other in pairwise([*before[-1:], *after]))

    async def _apply(self, table: DepthTable) -> None:
        # Before it is sent, because a cancelled call may still be applied.
        self._version = table.version
        await live_depth.set_depths(self._llm, table)
        self._applied.append((time.monotonic(), table))
        plan = self._rule.plan if self._rule else None
        if plan is not None and plan.untried is not None and plan.table.depths == table.depths:
            table = replace(table, depths=plan.untried)
        self._tables.append((time.monotonic(), table))

    async def _ask(self, report: StepReport, _standing: StandingLimits | None) -> DepthPlan:
        # The last plan's limits may be another rule's pin; rules are not lost here, so none has to recover its limits.
        rule = self._rule
        assert rule is not None, "only `adapting` reports"
        report = replace(report, calibration=self._calibration or ())
        rule.plan = rule.depths.report(self.plan.name, report, rule.now_s)
        counted = self._tables[-1][1] if self._tables else None
        if (
            rule.plan.mode is not Mode.PROBING
            and rule.plan.table.version == self._version
            and rule.plan.table != counted
        ):
            # A kept trial: its table counts as a change from now on.
            self._tables.append((time.monotonic(), rule.plan.table))
        return rule.plan

    async def settle(self) -> None:
        """Clear the prefix cache. The answer arrives after every earlier output and its statistics."""
        if not await self._llm.reset_prefix_cache():
            raise RuntimeError("the prefix cache is in use between two passes")

    async def stream(self, prompt: list[int]) -> AsyncIterator[Sequence[int]]:
        """Generate greedily to the fixed length, ignoring end-of-text tokens.

        Raises RuntimeError if the engine ends the request early, for example while it is stopping.
        """
        parameters = SamplingParams(
            temperature=0.0,
            max_tokens=self._output_tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        request = f"{self.plan.name}-{next(self._request_numbers)}"
        made = 0
        async for output in self._llm.generate(TokensPrompt(prompt_token_ids=prompt), parameters, request):
            tokens = output.outputs[0].token_ids
            made += len(tokens)
            if tokens:
                yield tokens
        if made < self._output_tokens:
            raise RuntimeError(f"a request ended after {made} of {self._output_tokens} tokens")

    def stop(self) -> None:
        self._llm.shutdown()


async def idle_cpu_ratio(seconds: float) -> float:
    """Return the CPU use of this process's children while they are idle, in cores."""
    before = _children_cpu_s()
    await asyncio.sleep(seconds)
    return max(0.0, _children_cpu_s() - before) / seconds


def _children_cpu_s() -> float:
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
