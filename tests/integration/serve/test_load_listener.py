"""What a replica learns about its engine's steps, whenever it asks."""

import weakref

from vllm.v1.engine import FinishReason
from vllm.v1.metrics.stats import FinishedRequestStats, IterationStats, SchedulerStats

from peagle.serve.replica.load_listener import STEPS_KEPT, LoadListener


def _step(running: int, tokens: int) -> tuple[SchedulerStats, IterationStats]:
    stats = IterationStats()
    stats.num_generation_tokens = tokens
    stats.num_preempted_reqs = 2
    stats.inter_token_latencies_iter = [0.01] * running
    return SchedulerStats(num_running_reqs=running, num_waiting_reqs=1, kv_cache_usage=0.5), stats


def kept(steps: list[weakref.ref[IterationStats]]) -> int:
    """Return how many of the steps' statistics are still referenced."""
    return sum(step() is not None for step in steps)


def heard(listener: LoadListener, running: int, tokens: int) -> weakref.ref[IterationStats]:
    scheduler_stats, stats = _step(running, tokens)
    listener.record(scheduler_stats, stats)
    return weakref.ref(stats)


def test_every_step_counts_however_few_wait() -> None:
    for steps in (1, STEPS_KEPT - 1, STEPS_KEPT, 2 * STEPS_KEPT + 3):
        listener = LoadListener()
        told = [heard(listener, running=number % 3, tokens=4) for number in range(steps)]
        assert listener.load.generation_tokens == 4 * steps
        assert listener.load.running_requests == (steps - 1) % 3
        assert (listener.load.waiting_requests, listener.load.kv_usage_ratio) == (1, 0.5)
        assert listener.sums.preemptions == 2 * steps
        assert kept(told) == 0


def test_few_steps_wait() -> None:
    listener = LoadListener()
    told = []
    for _ in range(10 * STEPS_KEPT):
        told.append(heard(listener, 1, 1))
        assert kept(told) < STEPS_KEPT


def test_a_pause_leaves_sums_as_they_are_and_load_goes_on() -> None:
    listener = LoadListener()
    for counting in (True, False, True):
        listener.count(counting)
        listener.record(*_step(1, 4))
    assert listener.sums.preemptions == 4
    assert listener.load.generation_tokens == 12


def test_the_prefill_of_embedded_requests_is_learned_and_that_of_failed_ones_is_not() -> None:
    listener = LoadListener(pools=True)
    for number in range(8):
        scheduler_stats, stats = _step(0, 0)
        reason, prefill_s = (FinishReason.ABORT, 1e6) if number % 2 else (FinishReason.STOP, 0.1)
        stats.finished_requests = [
            FinishedRequestStats(finish_reason=reason, num_prompt_tokens=100, prefill_time=prefill_s)
        ]
        listener.record(scheduler_stats, stats)
    assert round(listener.rates.prefill_tokens_per_s) == 1000
    assert listener.load.generation_tokens == 0
