"""Batches vLLM's own series for Ray's metrics. Importing this module imports vLLM.

vLLM reports some twenty values to Ray after each engine step. Nothing reads them that often, and code that runs once in
milliseconds runs with cold CPU caches: it takes ten times as long as for many steps at once. So steps are held for at
most a quarter of a second; then Ray receives the sums of counters and the last values of gauges. Histograms receive
every value.
"""

import asyncio
from collections import defaultdict
from typing import Any

from vllm.v1.metrics.ray_wrappers import (
    RayCounterWrapper,
    RayGaugeWrapper,
    RayKVConnectorProm,
    RayPerfMetricsProm,
    RayPrometheusStatLogger,
    RaySpecDecodingProm,
)
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

HOLD_S = 0.25


class Held:
    """Values not yet reported to Ray."""

    def __init__(self) -> None:
        self.sums: defaultdict[HeldCounter, float] = defaultdict(float)
        self.values: dict[HeldGauge, float] = {}

    def hand_over(self) -> None:
        sums, values = self.sums, self.values
        self.sums, self.values = defaultdict(float), {}
        for counter, added in sums.items():
            counter.tell(added)
        for gauge, value in values.items():
            gauge.tell(value)


_HELD = Held()


class HeldCounter(RayCounterWrapper):  # type: ignore[misc]  # vLLM ships no types
    """A counter that is held back; `tell` reports it."""

    def inc(self, value: float = 1.0) -> None:
        if value:
            _HELD.sums[self] += value

    def tell(self, added: float) -> None:
        super().inc(added)


class HeldGauge(RayGaugeWrapper):  # type: ignore[misc]  # vLLM ships no types
    """A gauge that is held back; `tell` reports it."""

    def set(self, value: float) -> None:
        _HELD.values[self] = value

    def tell(self, value: float) -> None:
        super().set(value)


class _SpecDecoding(RaySpecDecodingProm):  # type: ignore[misc]  # vLLM ships no types
    _counter_cls = HeldCounter


class _KvConnector(RayKVConnectorProm):  # type: ignore[misc]  # vLLM ships no types
    _gauge_cls, _counter_cls = HeldGauge, HeldCounter


class _Performance(RayPerfMetricsProm):  # type: ignore[misc]  # vLLM ships no types
    _counter_cls = HeldCounter


class EngineSeries(RayPrometheusStatLogger):  # type: ignore[misc]  # vLLM ships no types
    """vLLM's stat logger for Ray; `record` needs a running event loop, as in vLLM's output handler.

    Attributes:
        counting: Whether new steps are counted.
    """

    _gauge_cls, _counter_cls = HeldGauge, HeldCounter
    _spec_decoding_cls, _kv_connector_cls, _perf_metrics_cls = _SpecDecoding, _KvConnector, _Performance

    def __init__(self, *args: Any) -> None:
        self._steps: list[tuple[Any, ...]] = []
        self.counting = True
        super().__init__(*args)

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if not self.counting:
            return
        if not self._steps:
            # Not with a later step: an engine that is idle after this one must not appear to be running.
            asyncio.get_running_loop().call_later(HOLD_S, self._hand_over)
        self._steps.append((scheduler_stats, iteration_stats, mm_cache_stats, engine_idx))

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        super().record_sleep_state(sleep, level)
        _HELD.hand_over()  # a sleeping engine makes no steps

    def log_engine_initialized(self) -> None:
        super().log_engine_initialized()
        _HELD.hand_over()

    def _hand_over(self) -> None:
        steps, self._steps = self._steps, []
        for step in steps:
            super().record(*step)
        _HELD.hand_over()
