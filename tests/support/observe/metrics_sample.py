"""One complete answer of `/metrics`, made by the production code from sample values."""

from types import SimpleNamespace
from typing import Any

from peagle.api.clients.request_charge import Usage
from peagle.api.http_metrics import Exchange, HttpMetrics, Scrape
from peagle.engine.cost_prior import FoundPrior
from peagle.errors import ConfigError
from peagle.metrics import SECONDS
from peagle.router.depth import ModelDepths
from peagle.router.snapshot import DepthTable, StepStats
from peagle.serve.replica.engine_sums import Buckets, EngineSums
from peagle.serve.reporting import PlanStatus
from support.depth.depth_reports import SETTINGS, good_cell, report

MODEL, REPLICA = "m", "r1"


def finished_request(**changes: Any) -> SimpleNamespace:
    usual = {
        "finish_reason": "stop",
        "e2e_latency": 0.9,
        "num_generation_tokens": 9,
        "queued_time": 0.02,
        "mean_time_per_output_token": 0.1,
    }
    return SimpleNamespace(**{**usual, **changes})


def step_of_vllm(**changes: Any) -> SimpleNamespace:
    usual = {
        "num_prompt_tokens": 12,
        "num_preempted_reqs": 1,
        "time_to_first_tokens_iter": [0.03],
        "inter_token_latencies_iter": [0.012, 0.3],
        "finished_requests": [finished_request()],
    }
    return SimpleNamespace(**{**usual, **changes})


def engine_sums() -> EngineSums:
    sums = EngineSums()
    sums.stepped(step_of_vllm())
    sums.looked_up(SimpleNamespace(queries=12, hits=4, preempted_queries=3, preempted_hits=1))
    return sums


def replica_row() -> dict[str, Any]:
    # Imported here: it imports all of Ray Serve LLM.
    from peagle.serve.replica.replica_status import depth_status, plan_status

    ran_as = {"full": 98, "piecewise": 2, "none": 0}
    stats, stalls = StepStats(DepthTable(3, (5, 5)), 7, (good_cell(),), steps_by_graph=ran_as), Buckets(SECONDS)
    stalls.observe(0.004)
    return {
        "id": REPLICA,
        "running_requests": 2,
        "waiting_requests": 1,
        "kv_usage_ratio": 0.25,
        "engine_stalls": 1,
        "slow_grammars": 3,
        "generation_tokens": 40,
        "devices": 1,
        "warm_up_s": 0.5,
        "loop_stall": stalls.plain(),
        "depth_changes": {"gain": 2},
        "depth_modes": {"adaptive": 1},
        "steps_by_depth": stats.steps_by_depth,
        "steps_by_graph": stats.steps_by_graph,
        **engine_sums().plain(),
        **depth_status(stats),
        **plan_status(PlanStatus("adaptive", "", 0.4)),
    }


def estimates() -> dict[str, dict[str, Any]]:
    # Imported here: it imports all of Ray Serve.
    from peagle.serve.routing.router_deployment import estimate_rows

    depths = ModelDepths(SETTINGS)
    for number in range(4):
        depths.report(REPLICA, report(good_cell()), 0.5 * number)
    prior = FoundPrior(SETTINGS.cost, "", {"target": ConfigError("target.source", "org/t", "it is not known", "")})
    return estimate_rows(depths, prior, 2.0)


def http_values() -> HttpMetrics:
    http = HttpMetrics()
    for status in (200, 200, 404, 429, 499, 500):
        exchange = Exchange(MODEL, ttft_s=0.04 if status == 200 else None)
        http.opened(exchange)
        for at_s in (0.04, 0.06):
            http.sent(exchange, b'data: {"choices":[{"text":"x"}]}\n\n', at_s)
        http.closed(exchange, status, 1.0)
    http.observe("POST", "/v1/completions", 200, 1.0)
    http.retried(MODEL)
    http.stalled(0.002)
    http.used("team-a", MODEL, Usage(prompt=12, cached=4, output=9, drafted=14, accepted=6))
    http.refused("team-a", "tokens_per_minute")
    for reason in ("soonest", "soonest", "wait-full"):
        http.decided(MODEL, reason)
    return http


def whole_scrape() -> Scrape:
    return Scrape(
        ingress={"i1": http_values().values()},
        replicas={MODEL: [replica_row()]},
        estimates={MODEL: estimates()},
        states={MODEL: {"running": 1}},
    )
