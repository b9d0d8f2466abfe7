"""Sums over an engine's steps since its start, in fixed buckets and counters of constant size."""

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from peagle.metrics import FINISH, QUEUE_SECONDS, SECONDS, TOKEN_SECONDS


@dataclass(slots=True)
class Buckets:
    """A histogram. `counts[i]` counts values in (`bounds[i-1]`, `bounds[i]`]; the last counts all above."""

    bounds: tuple[float, ...]
    counts: list[int] = field(init=False)
    sum: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def plain(self) -> dict[str, Any]:
        return {"bounds": list(self.bounds), "counts": list(self.counts), "sum": self.sum}


@dataclass(slots=True)
class EngineSums:
    """Histograms in seconds, and counters of tokens and requests."""

    ttft: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    itl: Buckets = field(default_factory=lambda: Buckets(TOKEN_SECONDS))
    tpot: Buckets = field(default_factory=lambda: Buckets(TOKEN_SECONDS))
    e2e: Buckets = field(default_factory=lambda: Buckets(SECONDS))
    queue: Buckets = field(default_factory=lambda: Buckets(QUEUE_SECONDS))
    prompt_tokens: int = 0
    prefix_query_tokens: int = 0
    prefix_hit_tokens: int = 0
    preemptions: int = 0
    # Every reason from the start, because a rate ignores a series' first value.
    finished: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(FINISH.values, 0)))

    def stepped(self, stats: Any) -> None:
        """Add vLLM's `IterationStats` of one step."""
        self.prompt_tokens += stats.num_prompt_tokens
        self.preemptions += stats.num_preempted_reqs
        for seconds in stats.time_to_first_tokens_iter:
            self.ttft.observe(seconds)
        for seconds in stats.inter_token_latencies_iter:
            self.itl.observe(seconds)
        for request in stats.finished_requests:
            self.finished[str(request.finish_reason)] += 1
            self.e2e.observe(request.e2e_latency)
            if request.num_generation_tokens:  # an aborted request may never have left the queue
                self.queue.observe(request.queued_time)
            if request.num_generation_tokens > 1:
                self.tpot.observe(request.mean_time_per_output_token)

    def looked_up(self, stats: Any) -> None:
        """Add vLLM's `PrefixCacheStats` of one step."""
        self.prefix_query_tokens += stats.queries + stats.preempted_queries
        self.prefix_hit_tokens += stats.hits + stats.preempted_hits

    def plain(self) -> dict[str, Any]:
        """Return the fields of a replica's answer to a scrape."""
        return {
            **{name: getattr(self, name).plain() for name in ("ttft", "itl", "tpot", "e2e", "queue")},
            "prompt_tokens": self.prompt_tokens,
            "prefix_query_tokens": self.prefix_query_tokens,
            "prefix_hit_tokens": self.prefix_hit_tokens,
            "preemptions": self.preemptions,
            "finished": dict(self.finished),
        }
