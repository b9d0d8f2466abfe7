"""One replica: Ray Serve LLM's server around vLLM, with the calls by which depth is set and measured."""

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from ray import serve
from ray.llm._internal.common.callbacks.base import CallbackBase
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig
from ray.serve.llm.deployment import LLMServer
from ray.util import get_node_ip_address

from peagle import tracing
from peagle.api.api_settings import GrammarSettings
from peagle.api.clients.client_header import CLIENT_HEADER, flow_in
from peagle.api.loop_watch import watch_loop
from peagle.api.loopback import answer_on_loopback
from peagle.api.openai_errors import told
from peagle.api.tries import LAST_TRY_HEADER
from peagle.config import Deployment
from peagle.engine.client_mistakes import in_serve, in_vllm, shorten, shorten_vllm
from peagle.engine.depth.live_depth import StepStatsReader, set_depths
from peagle.errors import EngineGoneError, EngineStalledError
from peagle.host.cores import bind_to_cores
from peagle.metrics import SECONDS
from peagle.router.depth import DepthPlan, StandingLimits
from peagle.router.dispatch import POLICIES
from peagle.router.engine_pulse import EnginePulse
from peagle.router.rates import EngineRates
from peagle.router.snapshot import DepthTable, ReplicaSnapshot, ReplicaState, StepReport, StepStats
from peagle.serve.replica.asking_flow import FLOW
from peagle.serve.replica.drafted_kinds import DraftedKinds
from peagle.serve.replica.engine_sums import Buckets
from peagle.serve.replica.engine_watch import EngineWatch
from peagle.serve.replica.making_ready import make_ready
from peagle.serve.replica.replica_status import depth_status, plan_status
from peagle.serve.replica.start_failure import telling_why
from peagle.serve.reporting import TIMEOUT_S, DepthReporter, PlanStatus, keep_reporting

LOAD_PERIOD_S = 0.9
"""Longest interval in seconds between load reports to dispatchers, which ignore reports older than 2 s."""

GRAMMAR_CACHE_MB = 64
"""Default size of an engine's cache of compiled grammars, in MiB."""

STATIC = PlanStatus("static", "the configured depths apply", None)


class LocalCheckpoint(CallbackBase):  # type: ignore[misc]  # Ray ships no types
    """Skips Ray's download step, which starts an extra process, if the checkpoint is a local folder."""

    async def on_before_node_init(self) -> None:
        self.ctx.run_init_node = False


class PeagleServer(LLMServer):  # type: ignore[misc]  # Ray ships no types
    """A replica of one deployment. It applies the depths that it receives and reports; it chooses none."""

    async def __init__(  # type: ignore[misc]
        self,
        llm_config: LLMConfig,
        *,
        deployment: Deployment,
        router: DeploymentHandle | None = None,
        metrics: bool = True,
        dispatched: bool = False,
        grammar: GrammarSettings | None = None,
    ) -> None:
        """Args:
        llm_config: Ray's configuration of the engine.
        deployment: The deployment's settings.
        router: Handle of the Router, which receives reports and chooses adaptive depths; None if neither is needed.
        metrics: Whether vLLM's own series are exported through Ray's metrics.
        dispatched: Whether dispatchers choose among replicas by their reported state.
        grammar: Limits for compiling a request's grammar; None for the defaults.
        """
        answer_on_loopback()
        self._deployment = deployment
        self._router = router
        self._metrics = metrics
        self._pulse = EnginePulse(deployment.replicas.hung_after_s)
        self._watch = EngineWatch(self._pulse, self._probe, self._next_prefill, moves=dispatched)
        self._grammar = grammar or GrammarSettings()
        self._gate: Any = None
        self._listener: Any = None
        self._series: Any = None
        self._step_stats: StepStatsReader | None = None
        self._before_serving: StepStats | None = None
        self._warm_up_s = 0.0
        self._reporter: DepthReporter | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stalls = Buckets(SECONDS)
        self._drafted = DraftedKinds()
        policy = POLICIES.get(deployment.routing.policy)
        self._notes_kinds = policy is not None and policy.by_kind
        with telling_why(deployment):
            await super().__init__(llm_config)

    async def start(self) -> None:
        """Start the engine; return when it is warm and, with adaptive depth, its steps are timed."""
        # For the engine's process, a child of this one. Hostile grammars would fill vLLM's default of 512.
        os.environ.setdefault("VLLM_XGRAMMAR_CACHE_MB", str(GRAMMAR_CACHE_MB))
        if self._deployment.resources.accelerator == "cpu":
            bind_to_cores(int(self._deployment.resources.cpus))
        await super().start()
        shorten_vllm(in_vllm)
        shorten(logging.getLogger("ray.serve"), in_serve)
        # Imported here: vLLM takes seconds to import, and only a replica needs it.
        from peagle.serve.replica.grammar_gate import GrammarGate
        from peagle.serve.replica.load_listener import LoadListener

        if not self._deployment.pools:
            self._gate = await asyncio.to_thread(GrammarGate, self._client, self._grammar)
        self._step_stats = StepStatsReader(self._client)
        manager = self._client.logger_manager
        # vLLM's own loggers cannot be read here. Ours are added after the requests that are not a client's.
        manager.stat_loggers.clear()
        ready = await make_ready(self._client, self._deployment, timed=self._router is not None)
        self._warm_up_s = ready.warm_up_s
        if self._has_live_depth:
            self._before_serving = await self._read_step_stats()
        self._listener = LoadListener(self._pulse, pools=self._deployment.pools)
        manager.stat_loggers.append(self._listener)
        if self._metrics:
            from peagle.serve.replica.engine_series import EngineSeries

            self._series = EngineSeries(self._client.vllm_config, manager.engine_indexes)
            self._series.log_engine_initialized()
            manager.stat_loggers.append(self._series)
            self._tasks.append(asyncio.create_task(watch_loop(self._stalls.observe), name="loop watch"))
        self._tasks.append(asyncio.create_task(self._watch.run(), name="engine watch"))
        if self._router is None:
            return
        if self._deployment.adapts:
            self._reporter = DepthReporter(self._read_step_stats, self._apply, self._ask_router, ready.calibration)
        self._tasks.append(asyncio.create_task(keep_reporting(self.report), name="reports"))

    async def report(self) -> None:
        """Report load and steps to the Router once; only load if the engine is dead or has no live depth."""
        if self._reporter is None or self._client.errored:
            await self._tell_load()
            return
        reporting, load_told = asyncio.create_task(self._reporter.report()), False
        try:
            async with asyncio.timeout(TIMEOUT_S):
                # An engine in a long step returns its statistics late, and a dying engine never does. Meanwhile
                # dispatchers need a load report before their last one becomes stale.
                while not (await asyncio.wait({reporting}, timeout=LOAD_PERIOD_S))[0]:
                    await self._tell_load()
                    load_told = True
                await reporting
        except TimeoutError:
            if not load_told:  # the Router is late
                raise
        finally:
            reporting.cancel()

    async def _tell_load(self) -> None:
        async with asyncio.timeout(LOAD_PERIOD_S):
            await self._ask_router(None)

    async def _ask_router(self, steps: StepReport | None, standing: StandingLimits | None = None) -> DepthPlan:
        assert self._router is not None
        report = self._snapshot(), steps, standing, self._drafted.take()
        plan: DepthPlan = await self._router.report.remote(self._deployment.name, *report)
        return plan

    def _snapshot(self) -> ReplicaSnapshot:
        from peagle.serve.replica.load_listener import kv_capacity_tokens, queued_prompt_tokens

        load, client = self._listener.load, self._client
        rates: EngineRates = self._listener.rates
        seen = ReplicaSnapshot(
            replica_id=replica_id(),
            taken_at_s=0.0,  # the receiver sets this, on its own clock
            state=self._state,
            running_requests=load.running_requests,
            waiting_requests=load.waiting_requests,
            queued_prompt_tokens=queued_prompt_tokens(client),
            max_running_requests=client.vllm_config.scheduler_config.max_num_seqs,
            max_ongoing_requests=self._deployment.routing.max_ongoing_requests,
            kv_usage_ratio=load.kv_usage_ratio,
            kv_capacity_tokens=kv_capacity_tokens(client),
        )
        return rates.told(seen, time.monotonic())

    def _get_default_engine_class(self) -> Any:
        # Imported here: the process that builds the app imports this module, and does not need vLLM.
        from peagle.serve.replica.ray_engine import PeagleEngine

        return PeagleEngine

    async def _start_engine(self) -> None:
        # Ray's own method also reports usage, through an extra process that imports all of vLLM.
        await self.engine.start()

    @property
    def _client(self) -> Any:
        return self.engine._engine_client

    @property
    def _state(self) -> ReplicaState:
        if self._client.errored:
            return ReplicaState.DEAD
        return ReplicaState.STALLED if self._watch.stalled else ReplicaState.READY

    async def check_ready(self) -> None:
        """Raise unless the engine is alive and responding; `check_health` accepts a slow engine."""
        await self.check_health()
        if self._watch.stalled:
            raise EngineStalledError("The engine does not respond.")

    async def _probe(self) -> None:
        await self._client.is_sleeping()

    def _next_prefill(self) -> tuple[int, float]:
        from peagle.serve.replica.load_listener import queued_prompt_tokens

        step_tokens: int = self._client.vllm_config.scheduler_config.max_num_batched_tokens
        rate: float = self._listener.rates.prefill_tokens_per_s
        return min(queued_prompt_tokens(self._client), step_tokens), rate

    async def responses(self, request: Any, info: RawRequestInfo | None = None) -> AsyncGenerator[Any, None]:
        """Answer a request of the Responses API, as `chat` does for chats."""
        return await self._run_request(
            request, engine_method="responses", batch_output_stream=True, raw_request_info=info
        )

    async def messages(self, request: Any, info: RawRequestInfo | None = None) -> AsyncGenerator[Any, None]:
        """Answer a request of the Messages API, as `chat` does for chats."""
        return await self._run_request(
            request, engine_method="messages", batch_output_stream=True, raw_request_info=info
        )

    async def count_tokens(self, request: Any, info: RawRequestInfo | None = None) -> AsyncGenerator[Any, None]:
        """Count the tokens of a message."""
        return await self._run_request(request, engine_method="count_tokens", raw_request_info=info)

    async def _run_request(
        self, *args: Any, raw_request_info: RawRequestInfo | None = None, **options: Any
    ) -> AsyncGenerator[Any, None]:
        if self._client.errored:
            raise EngineGoneError("The engine of this request's replica has ended.")
        headers = dict(raw_request_info.headers) if raw_request_info else {}
        FLOW.set(flow := flow_in(headers))
        if self._notes_kinds:
            self._drafted.listen(args[0] if args else None, flow)
        headers.pop(CLIENT_HEADER, None)
        last_try = headers.pop(LAST_TRY_HEADER, None) is not None
        if tracing.is_on():
            tracing.continue_in(headers)  # Serve's span of this replica instead of the request's first span
        options["raw_request_info"] = RawRequestInfo(headers=headers)
        return self._while_alive(await super()._run_request(*args, **options), last_try)

    async def _while_alive(self, replies: AsyncGenerator[Any, None], last_try: bool) -> AsyncGenerator[Any, None]:
        """Pass on `replies`; raise if the engine is dead, which vLLM reports like any failed request.

        The raised error counts as a lost replica's, so the request goes to another. Other exceptions are converted to
        forms that the ingress understands.
        """
        async with aclosing(replies):
            try:
                async for reply in self._watch.movable(replies, last_try=last_try):
                    if self._client.errored:
                        raise self._client.dead_error
                    yield reply
            except Exception as error:
                if self._client.errored:
                    raise self._client.dead_error from error
                raised = told(error)
                if raised is error:
                    raise
                raise raised from error

    async def _apply(self, table: DepthTable) -> None:
        await set_depths(self._client, table)

    async def _read_step_stats(self) -> StepStats:
        assert self._step_stats is not None, "the engine has started"
        stats = await self._step_stats.read()
        return stats if self._before_serving is None else stats.since(self._before_serving)

    async def replica_status(self) -> dict[str, Any]:
        """Return this replica's row of `GET /fleet`: load, depth table, and results of drafting.

        `depth_effective` is draft tokens per draft and `acceptance_length` tokens per verification, since the replica
        became ready; both are null before the first draft and without live depth.
        """
        return self._status(await self._live_depth_stats())

    async def replica_metrics(self) -> dict[str, Any]:
        """Return this replica's part of `GET /metrics`: its status, and its engine's sums."""
        stats = await self._live_depth_stats()
        speculation: dict[str, Any] = {}
        if stats is not None:
            changes = self._reporter.changes if self._reporter is not None else {}
            speculation = {
                "steps_by_depth": stats.steps_by_depth,
                "steps_by_graph": dict(stats.steps_by_graph),
                "depth_changes": changes,
                "depth_modes": {self._plan.mode: 1},
            }
        sums = self._listener.sums.plain()
        replica = {
            "devices": self._deployment.devices,
            "warm_up_s": self._warm_up_s,
            "loop_stall": self._stalls.plain(),
            "slow_grammars": self._gate.slow if self._gate is not None else 0,
        }
        return {**self._status(stats), **sums, **speculation, **replica}

    async def count_steps(self, counting: bool) -> None:
        """Start or pause counting new engine steps. Load, rates and drafts are kept current either way."""
        self._listener.count(counting)
        if self._series is not None:
            self._series.counting = counting

    def _status(self, stats: StepStats | None) -> dict[str, Any]:
        load = self._listener.load
        return {
            "id": replica_id(),
            "node": get_node_ip_address(),
            "state": self._state.value,
            "running_requests": load.running_requests,
            "waiting_requests": load.waiting_requests,
            "kv_usage_ratio": load.kv_usage_ratio,
            "engine_stalls": self._watch.stalls,
            "generation_tokens": load.generation_tokens,
            **depth_status(stats),
            **(plan_status(self._plan) if stats is not None else {}),
        }

    async def _live_depth_stats(self) -> StepStats | None:
        """Return the engine's step statistics; None without live depth, or if the engine does not answer now."""
        if not self._has_live_depth or self._client.errored:
            return None
        try:
            async with asyncio.timeout(TIMEOUT_S):
                return await self._read_step_stats()
        except Exception as error:
            # An engine in a long step answers late, and a dying engine never does; its load is known here anyway.
            if isinstance(error, TimeoutError) or self._client.errored:
                return None
            raise

    @property
    def _has_live_depth(self) -> bool:
        return self._deployment.speculates and self._deployment.speculation.live_depth

    @property
    def _plan(self) -> PlanStatus:
        return self._reporter.status if self._reporter is not None else STATIC

    async def __del__(self) -> None:
        """End the engine's processes before the replica's; Serve calls this when it stops a replica."""
        for task in getattr(self, "_tasks", ()):
            task.cancel()
        if (gate := getattr(self, "_gate", None)) is not None:
            gate.close()
        engine = getattr(self, "engine", None)
        client = getattr(engine, "_engine_client", None)
        if client is not None:
            client.shutdown()
        await super().__del__()


def replica_id() -> str:
    """Return this replica's name in the fleet."""
    name: str = serve.get_replica_context().replica_id.unique_id
    return name
