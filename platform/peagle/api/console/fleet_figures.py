"""Figures of each model for the console, from the answers of `/metrics`, without addresses, paths and clients."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

from peagle import metrics
from peagle.api.http_metrics import Scrape, Value, with_estimates
from peagle.config import Deployment
from peagle.metrics import Metric

REPLICAS_MAX = 64
"""Maximum number of listed replicas of a model."""

REPLICA_FIELDS = (
    *("id", "state", "running_requests", "waiting_requests", "kv_usage_ratio", "engine_stalls"),
    *("generation_tokens", "prompt_tokens", "prefix_query_tokens", "prefix_hit_tokens", "preemptions", "queue"),
    *("depths", "depth_mode", "depth_reason", "plan_age_s", "depth_planned", "depth_fallbacks", "steps_by_depth"),
    *("drafts", "drafted", "accepted", "drafted_by_position", "accepted_by_position", "acceptance_length"),
    *("speedup_ratio", "speedup_low", "speedup_high", "predicted_tokens_per_s", "measured_tokens_per_s"),
)
"""Fields of a replica's answer that leave the server."""


def model_rows(scrape: Scrape, deployments: Mapping[str, Deployment]) -> list[dict[str, Any]]:
    """Return a row for each model of `scrape.replicas`. Counters count since the start of their processes.

    `ingresses` names the processes that `requests`, `ttft` and `itl` are sums of.
    """
    values = [value for of_process in scrape.ingress.values() for value in of_process]
    return [_model_row(model, scrape, values, deployments.get(model)) for model in scrape.replicas]


def _model_row(model: str, scrape: Scrape, values: Sequence[Value], deployment: Deployment | None) -> dict[str, Any]:
    rows = with_estimates(scrape.replicas[model], scrape.estimates.get(model, {}))
    rows.sort(key=lambda row: str(row["id"]))
    speculates = deployment is not None and deployment.speculates
    return {
        "name": model,
        "generates": deployment is None or not deployment.pools,
        "depth_max": deployment.speculation.depth_max if deployment is not None and speculates else None,
        "states": dict(scrape.states.get(model, {})),
        "ingresses": sorted(scrape.ingress),
        "requests": _requests_by_outcome(values, model),
        "requests_open": sum(_of_model(values, metrics.REQUESTS_OPEN.series[0], model)),
        "ttft": _histogram(values, metrics.REQUEST_TTFT, model),
        "itl": _histogram(values, metrics.REQUEST_ITL, model),
        "replicas": [_replica_row(row) for row in rows[:REPLICAS_MAX]],
        "replicas_left_out": max(0, len(rows) - REPLICAS_MAX),
    }


def _replica_row(row: Mapping[str, Any]) -> dict[str, Any]:
    # JSON has no infinity, and an estimate from few observations may be infinite.
    told = {name: row[name] for name in REPLICA_FIELDS if name in row}
    return {name: None if isinstance(value, float) and not isfinite(value) else value for name, value in told.items()}


def _of_model(values: Iterable[Value], series: str, model: str) -> Iterable[float]:
    return (value for name, labels, value in values if name == series and ("model", model) in labels)


def _requests_by_outcome(values: Iterable[Value], model: str) -> dict[str, int]:
    counts: defaultdict[str, int] = defaultdict(int)
    for name, labels, value in values:
        of = dict(labels)
        if name == metrics.REQUESTS.series[0] and of["model"] == model:
            counts[of["outcome"]] += int(value)
    return dict(counts)


def _histogram(values: Iterable[Value], metric: Metric, model: str) -> dict[str, Any]:
    """Sum a histogram over processes. `counts[i]` are values above `bounds[i - 1]` and up to `bounds[i]`."""
    up_to: defaultdict[float, float] = defaultdict(float)
    for name, labels, value in values:
        of = dict(labels)
        if name == f"{metric.name}_bucket" and of["model"] == model:
            up_to[float(of["le"])] += value
    bounds = sorted(up_to)
    below = [0.0, *(up_to[bound] for bound in bounds)]
    counts = [int(upper - lower) for lower, upper in pairwise(below)]
    return {"bounds": bounds[:-1], "counts": counts}  # the last bound is infinite
