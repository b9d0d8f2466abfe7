"""vLLM's metrics reach Ray summed over an engine's steps, and rarely."""

import asyncio
from typing import Any

import pytest

from peagle.serve.replica.engine_series import HOLD_S, EngineSeries, HeldCounter, HeldGauge
from support.virtual_time import in_virtual_time


class Ray:
    """Replaces Ray's metric, and records its values."""

    _tag_keys = ("engine", "ReplicaId")

    def __init__(self) -> None:
        self.told: list[tuple[float, str]] = []

    def _tell(self, value: float, tags: dict[str, str]) -> None:
        self.told.append((value, tags["engine"]))

    inc = set = _tell


def test_counters_are_summed_and_gauges_keep_their_last_value_until_they_are_handed_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(EngineSeries.__base__, "__init__", lambda _self: None)
    monkeypatch.setattr(EngineSeries.__base__, "log_engine_initialized", lambda _self: None)
    counters = HeldCounter("held_counter", "", ["engine"])
    gauges = HeldGauge("held_gauge", "", ["engine"])
    counters.metric, gauges.metric = Ray(), Ray()
    first, second, running = counters.labels("0"), counters.labels("1"), gauges.labels("0")
    for value in (2, 3):
        first.inc(value)
        running.set(value)
    second.inc()
    second.inc(0)
    assert counters.metric.told == gauges.metric.told == []
    for _ in range(2):  # the second finds nothing
        EngineSeries().log_engine_initialized()
    assert counters.metric.told == [(5, "0"), (1, "1")]
    assert gauges.metric.told == [(3, "0")]


@pytest.mark.parametrize("rounds", [1, 2])
@in_virtual_time
async def test_the_last_step_of_a_burst_is_handed_over_too(monkeypatch: pytest.MonkeyPatch, rounds: int) -> None:
    told: list[float] = []
    monkeypatch.setattr(HeldGauge, "tell", lambda _self, value: told.append(value))
    gauge = HeldGauge("held_gauge", "", ["engine"])

    def step(_self: Any, running: int, *_: Any) -> None:
        gauge.set(running)

    monkeypatch.setattr(EngineSeries.__base__, "__init__", lambda _self: None)
    monkeypatch.setattr(EngineSeries.__base__, "record", step)
    series = EngineSeries()
    for _ in range(rounds):
        for running in (3, 2, 1, 0):
            series.record(running, None)
        await asyncio.sleep(1.01 * HOLD_S)
    assert told == [0] * rounds


@in_virtual_time
async def test_a_step_of_a_pause_is_never_counted_and_the_one_before_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[int] = []
    monkeypatch.setattr(EngineSeries.__base__, "__init__", lambda _self: None)
    monkeypatch.setattr(EngineSeries.__base__, "record", lambda _self, step, *_: steps.append(step))
    series = EngineSeries()
    for step, counting in enumerate((True, False, True)):
        series.counting = counting
        series.record(step, None)
    await asyncio.sleep(1.01 * HOLD_S)
    assert steps == [0, 2]


@pytest.mark.parametrize("event", ["record_sleep_state", "log_engine_initialized"])
def test_values_of_rare_events_are_sent_at_once(monkeypatch: pytest.MonkeyPatch, event: str) -> None:
    told: list[float] = []
    monkeypatch.setattr(HeldGauge, "tell", lambda _self, value: told.append(value))
    gauge = HeldGauge("held_gauge", "", ["engine"])
    monkeypatch.setattr(EngineSeries.__base__, "__init__", lambda _self: None)
    monkeypatch.setattr(EngineSeries.__base__, event, lambda _self, *_: gauge.set(1))
    getattr(EngineSeries(), event)()
    assert told == [1]


def test_every_series_of_vllm_but_histograms_is_held() -> None:
    made = {EngineSeries._gauge_cls, EngineSeries._counter_cls}
    for part in (EngineSeries._spec_decoding_cls, EngineSeries._kv_connector_cls, EngineSeries._perf_metrics_cls):
        made |= {getattr(part, name) for name in ("_gauge_cls", "_counter_cls") if hasattr(part, name)}
    assert made == {HeldGauge, HeldCounter}
