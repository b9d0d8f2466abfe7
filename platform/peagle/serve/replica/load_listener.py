"""An engine's load, from vLLM's own statistics in the replica's process.

Steps are processed in batches, on demand: code that runs once in milliseconds runs with cold CPU caches.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

from vllm.v1.engine import FinishReason
from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from peagle.router.engine_pulse import EnginePulse
from peagle.router.rates import EngineRates
from peagle.serve.replica.engine_sums import EngineSums

STEPS_KEPT = 64


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests and cache use as of the last step; tokens since the engine's start."""

    running_requests: int = 0
    waiting_requests: int = 0
    kv_usage_ratio: float = 0.0
    generation_tokens: int = 0


class LoadListener(AggregateStatLoggerBase):  # type: ignore[misc]  # vLLM ships no types
    """A vLLM stat logger that keeps the latest statistics instead of printing them, and updates `pulse` every step."""

    def __init__(self, pulse: EnginePulse | None = None, *, pools: bool = False) -> None:
        """Args:
        pulse: Updated at every step.
        pools: Whether the engine embeds or scores, so that no answer has tokens.
        """
        self._pulse, self._pools = pulse, pools
        # The base's constructor is abstract and takes vLLM's configuration, which is not needed here.
        self._load = EngineLoad()
        self._sums = EngineSums()
        self._rates = EngineRates()
        self._counting = True
        self._steps: list[tuple[float, SchedulerStats | None, IterationStats | None]] = []

    @property
    def load(self) -> EngineLoad:
        self._take_in()
        return self._load

    @property
    def sums(self) -> EngineSums:
        self._take_in()
        return self._sums

    @property
    def rates(self) -> EngineRates:
        """Return the engine's measured rates, on the clock of `time.monotonic`."""
        self._take_in()
        return self._rates

    def count(self, counting: bool) -> None:
        """Start or pause summing new steps; load and rates are kept current either way."""
        self._take_in()
        self._counting = counting

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        self._steps.append((time.monotonic(), scheduler_stats, iteration_stats))
        if len(self._steps) == STEPS_KEPT:
            self._take_in()

    def _take_in(self) -> None:
        steps, self._steps = self._steps, []
        for at_s, scheduler_stats, iteration_stats in steps:
            if iteration_stats is not None:
                tokens = self._load.generation_tokens + iteration_stats.num_generation_tokens
                self._load = replace(self._load, generation_tokens=tokens)
                if self._counting:
                    self._sums.stepped(iteration_stats)
                self._learn(iteration_stats, at_s)
            if scheduler_stats is not None:
                if self._counting:
                    self._sums.looked_up(scheduler_stats.prefix_cache_stats)
                self._load = replace(
                    self._load,
                    running_requests=scheduler_stats.num_running_reqs,
                    waiting_requests=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
                    kv_usage_ratio=scheduler_stats.kv_cache_usage,
                )
                if self._pulse is not None:
                    self._pulse.stepped(at_s, self._load.running_requests + self._load.waiting_requests > 0)

    def _learn(self, stats: IterationStats, at_s: float) -> None:
        waits_s, first_tokens = stats.inter_token_latencies_iter, len(stats.time_to_first_tokens_iter)
        self._rates.stepped(len(waits_s), stats.num_generation_tokens - first_tokens, sum(waits_s), at_s)
        for request in stats.finished_requests:
            computed = request.num_prompt_tokens - request.num_cached_tokens
            if not self._pools:
                self._rates.finished(max(computed, 0), request.prefill_time, request.num_generation_tokens, at_s)
            elif request.finish_reason is FinishReason.STOP:  # other requests may have had no prefill
                self._rates.pooled(max(computed, 0), request.prefill_time, at_s)

    def log_engine_initialized(self) -> None:
        """Log nothing at the start."""


def queued_prompt_tokens(client: Any) -> int:
    """Return the prompt tokens of requests that have no first token yet."""
    waiting = client.output_processor.request_states.values()
    return sum(int(state.prompt_len) for state in waiting if state.is_prefilling)


def kv_capacity_tokens(client: Any) -> int:
    """Return the KV cache capacity in tokens; 0 if vLLM does not report it, or the model has no cache."""
    cache = client.vllm_config.cache_config
    blocks = cache.num_gpu_blocks or 0
    # vLLM gives a model without a cache an empty one.
    return int(blocks * cache.block_size) if blocks > 1 else 0
