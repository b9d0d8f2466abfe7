"""Usage of clients, summed over all ingress processes."""

from peagle.api.clients.request_charge import Usage
from peagle.api.clients.usage_routes import usage_rows
from peagle.api.http_metrics import CLIENTS_NAMED, HttpMetrics


def test_usage_is_summed_over_processes_by_client_and_model() -> None:
    counters = [HttpMetrics(), HttpMetrics()]
    for each in counters:
        each.used("team-a", "m", Usage(12, 4, 9, 14, 6))
        each.used("team-a", "other-model", None)
        each.refused("team-b", "requests_at_once")
    rows = usage_rows(value for each in counters for value in each.values())
    tokens = {"prompt_tokens": 24, "cached_tokens": 8, "output_tokens": 18, "drafted_tokens": 28, "accepted_tokens": 12}
    assert rows == [
        {
            "client": "team-a",
            "models": [
                {"model": "m", "requests": 2, **tokens},
                {"model": "other-model", "requests": 2, **dict.fromkeys(tokens, 0)},
            ],
            "refusals": {},
        },
        {"client": "team-b", "models": [], "refusals": {"requests_at_once": 2}},
    ]


def test_clients_beyond_a_bound_are_counted_together() -> None:
    counters = HttpMetrics()
    for number in range(CLIENTS_NAMED + 10):
        counters.used(f"c{number}", "m", None)
    rows = {row["client"]: row for row in usage_rows(counters.values())}
    assert len(rows) == CLIENTS_NAMED + 1
    assert rows["other"]["models"][0]["requests"] == 10
