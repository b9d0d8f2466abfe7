"""How busy an engine is, heard from vLLM's own statistics in the replica's process."""

from dataclasses import dataclass
from typing import Any

from vllm.v1.metrics.loggers import AggregateStatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Requests and cache as of the last step; tokens since the engine started."""

    running_requests: int = 0
    waiting_requests: int = 0
    kv_usage_ratio: float = 0.0
    generation_tokens: int = 0


class LoadListener(AggregateStatLoggerBase):  # type: ignore[misc]  # vLLM ships no types
    """A vLLM stat logger that keeps the newest figures instead of printing them."""

    def __init__(self) -> None:
        # The base's constructor is abstract and takes vLLM's configuration, which is not needed here.
        self.load = EngineLoad()

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        load = self.load
        tokens = load.generation_tokens + (iteration_stats.num_generation_tokens if iteration_stats else 0)
        if scheduler_stats is None:
            self.load = EngineLoad(load.running_requests, load.waiting_requests, load.kv_usage_ratio, tokens)
            return
        self.load = EngineLoad(
            running_requests=scheduler_stats.num_running_reqs,
            waiting_requests=scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs,
            kv_usage_ratio=scheduler_stats.kv_cache_usage,
            generation_tokens=tokens,
        )

    def log_engine_initialized(self) -> None:
        """Nothing to say at the start."""
