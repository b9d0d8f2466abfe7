"""Figures of the console: the fields of a model's row, and the fields that never leave the server."""

import json
from dataclasses import replace
from typing import Any

from peagle.api.console.fleet_figures import REPLICAS_MAX, model_rows
from peagle.api.http_metrics import Scrape
from peagle.metrics import SECONDS
from support.observe.metrics_sample import MODEL, http_values, replica_row, whole_scrape


def only_row(scrape: Scrape) -> dict[str, Any]:
    (row,) = model_rows(scrape, {})
    return row


def test_a_row_sums_what_all_ingress_processes_saw() -> None:
    values = http_values().values()
    row = only_row(replace(whole_scrape(), ingress={"i2": values, "i1": values}))
    assert row["ingresses"] == ["i1", "i2"]
    assert row["name"] == MODEL
    assert row["states"] == {"running": 1}
    assert row["requests"] == {"ok": 4, "client-error": 2, "shed": 2, "left": 2, "failed": 2}
    assert row["requests_open"] == 0
    assert row["ttft"]["bounds"] == [float(bound) for bound in SECONDS]
    assert len(row["ttft"]["counts"]) == len(SECONDS) + 1
    assert sum(row["ttft"]["counts"]) == 4
    assert row["ttft"]["counts"][2] == 4  # 40 ms


def test_a_replica_s_row_has_its_depths_with_the_reason_and_the_router_s_estimate() -> None:
    (replica,) = only_row(whole_scrape())["replicas"]
    assert replica["depths"] == [5, 5]
    assert replica["depth_mode"] == "adaptive"
    assert "depth_reason" in replica
    assert replica["speedup_low"] <= replica["speedup_ratio"] <= replica["speedup_high"]
    assert len(replica["drafted_by_position"]) == len(replica["accepted_by_position"])


def test_addresses_paths_and_clients_stay_on_the_server() -> None:
    told = {"node": "10.1.2.3", "target": "s3://bucket/target"}
    text = json.dumps(model_rows(replace(whole_scrape(), replicas={MODEL: [{**replica_row(), **told}]}), {}))
    for hidden in ("10.1.2.3", "s3://bucket", "team-a"):
        assert hidden not in text


def test_a_large_fleet_is_cut_and_the_row_says_by_how_much() -> None:
    replicas = [{**replica_row(), "id": f"r{number:03}"} for number in range(REPLICAS_MAX + 7)]
    row = only_row(replace(whole_scrape(), replicas={MODEL: replicas}))
    assert len(row["replicas"]) == REPLICAS_MAX
    assert row["replicas_left_out"] == 7


def test_an_infinite_bound_becomes_null() -> None:
    row = only_row(Scrape(replicas={MODEL: [{"id": "r1", "speedup_high": float("inf"), "speedup_low": 0.0}]}))
    assert row["replicas"] == [{"id": "r1", "speedup_high": None, "speedup_low": 0.0}]


def test_a_model_without_replicas_has_a_row() -> None:
    row = only_row(Scrape(replicas={MODEL: []}))
    assert row["replicas"] == []
    assert row["ttft"] == {"bounds": [], "counts": []}
