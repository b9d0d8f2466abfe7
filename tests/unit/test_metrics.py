"""The platform's metrics: what is declared is what is exported, pinned name by name, and every label is bounded.

`PEAGLE_UPDATE_SNAPSHOTS=1 make test TESTS=tests/unit/test_metrics.py` writes the pinned names anew.
"""

import os
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from peagle import metrics
from peagle.api.http_metrics import HttpMetrics, Scrape, exposition
from peagle.metrics import METRICS, Kind, Unit
from peagle.router.depth import Mode
from peagle.router.depth.plan import Cause
from peagle.router.dispatch import DECISION_REASONS
from peagle.router.graphs import GraphKind
from support.observe.metrics_sample import whole_scrape

PINNED = Path(__file__).parent / "golden" / "metrics.txt"


def exported() -> Iterator[str]:
    """Yield one line for each series of a whole answer: its name, type and labels."""
    for family in text_string_to_metric_families(exposition(whole_scrape()).decode()):
        names = {(sample.name, ",".join(sorted({*sample.labels} - {"le"}))) for sample in family.samples}
        yield from (f"{name} {family.type} {labels}" for name, labels in sorted(names))


def test_what_is_exported_is_what_was_reviewed() -> None:
    text = "".join(f"{line}\n" for line in exported())
    if os.environ.get("PEAGLE_UPDATE_SNAPSHOTS"):
        PINNED.write_text(text, encoding="utf-8")
    assert PINNED.read_text(encoding="utf-8") == text, "look at the difference; PEAGLE_UPDATE_SNAPSHOTS=1 accepts it"


def test_every_declared_series_is_exported_and_no_other() -> None:
    names = {line.split()[0] for line in exported()}
    assert names == {series for metric in METRICS for series in metric.series}


def test_no_two_metrics_have_one_name_and_units_end_names() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        for unit in (Unit.SECONDS, Unit.RATIO, Unit.TOKENS_PER_SECOND):
            assert metric.name.endswith(f"_{unit}") == (metric.unit is unit), metric.name
        assert metric.text.endswith(".")


def test_histograms_have_rising_buckets_and_nothing_else_has_any() -> None:
    for metric in METRICS:
        assert bool(metric.buckets) == (metric.kind is Kind.HISTOGRAM), metric.name
        assert all(low < high for low, high in pairwise(metric.buckets))


@pytest.mark.parametrize(
    ("label", "known"),
    [
        (metrics.MODE, {"static", *Mode}),
        (metrics.CAUSE, {*Cause}),
        (metrics.GRAPH, {*GraphKind}),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_label_has_the_values_that_the_rules_give_it(label: metrics.Label, known: set[str]) -> None:
    assert label.values == known


def test_a_label_has_the_values_that_ray_and_vllm_give_it() -> None:
    from ray.serve._private.common import ReplicaState
    from vllm.v1.engine import FinishReason

    assert metrics.STATE.values == {state.value.lower() for state in ReplicaState}
    assert metrics.FINISH.values == {str(reason) for reason in FinishReason}


def test_decisions_begin_at_zero_for_every_reason_of_the_dispatch_policies() -> None:
    http = HttpMetrics()
    http.expect(["m"])
    begun = {dict(labels)["reason"]: value for name, labels, value in http.values() if "decisions" in name}
    assert begun == dict.fromkeys(DECISION_REASONS, 0.0)


def test_a_value_that_a_label_is_not_declared_to_have_counts_as_another() -> None:
    http = HttpMetrics()
    http.decided("m", "whim")
    text = exposition(Scrape({"i": http.values()})).decode()
    assert 'peagle_dispatch_decisions_total{ingress="i",model="m",reason="other"} 1.0' in text


def test_ingress_processes_do_not_overwrite_each_other() -> None:
    values = [("peagle_request_retries_total", (("model", "m"),), 2.0)]
    text = exposition(Scrape({"a": values, "b": values})).decode()
    for process in ("a", "b"):
        assert f'peagle_request_retries_total{{ingress="{process}",model="m"}} 2.0' in text


def test_replicas_are_exposed_with_model_and_id() -> None:
    rows = [{"id": "r1", "running_requests": 3, "accepted": 7, "depth_effective": None}]
    known = {"m": {"r1": {"speedup_ratio": 1.5}, "gone": {"speedup_ratio": 2.0}}}
    text = exposition(Scrape(replicas={"m": rows, "idle": []}, estimates=known)).decode()
    assert 'peagle_replicas_answering{model="m"} 1.0' in text
    assert 'peagle_replicas_answering{model="idle"} 0.0' in text
    assert 'peagle_replica_running_requests{model="m",replica="r1"} 3.0' in text
    assert 'peagle_replica_accepted_tokens_total{model="m",replica="r1"} 7.0' in text
    assert 'peagle_replica_speedup_ratio{model="m",replica="r1"} 1.5' in text
    assert "peagle_replica_depth_effective{" not in text
    assert "gone" not in text


def test_acceptance_by_position_is_exposed_with_its_own_denominator() -> None:
    rows = [{"id": "r1", "drafted_by_position": [9, 4], "accepted_by_position": [7, 2]}]
    text = exposition(Scrape(replicas={"m": rows})).decode()
    for name, values in (("draft", (9, 4)), ("accepted", (7, 2))):
        for position, value in enumerate(values, start=1):
            series = f'peagle_replica_position_{name}_tokens_total{{model="m",position="{position}",replica="r1"}}'
            assert f"{series} {value}.0" in text
