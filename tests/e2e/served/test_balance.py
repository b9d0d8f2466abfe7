"""Two real engines behind one address: requests are placed by what the engines report, and both have their share.

The first file of its folder: what else the platform has served is in the reports too, and decides for the next seconds.
"""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from support.platforms.served import Served
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(1500)]

PROMPT = "def read_lines(path):\n    with open(path) as file:"
REQUESTS, AT_ONCE = 40, 8
_DECISION = re.compile(r'^peagle_dispatch_decisions_total\{[^}]*reason="([^"]+)"\} (\d+)', re.MULTILINE)


def decisions(served: Served) -> Counter[str]:
    text = httpx.get(f"{served.url}/metrics", timeout=PATIENCE_S).raise_for_status().text
    return Counter({reason: int(count) for reason, count in _DECISION.findall(text)})


def tokens_by_replica(served: Served) -> Counter[str]:
    return Counter({row["id"]: row["generation_tokens"] for row in served.fleet()})


def ask(served: Served, count: int, tokens: int) -> list[dict[str, Any]]:
    with ThreadPoolExecutor(AT_ONCE) as clients:
        return list(clients.map(lambda _: served.complete(PROMPT, tokens), range(count)))


def go_by_reports(served: Served) -> bool:
    """Ask both; return whether reports decided where. An engine's speed is unknown until it has finished a request."""
    before = decisions(served)
    ask(served, AT_ONCE, 16)
    made = decisions(served) - before
    return made["soonest"] + made["home"] > 0


def test_requests_go_where_reports_say_they_finish_first(served: Served) -> None:
    eventually(lambda: go_by_reports(served))
    before, tokens_before = decisions(served), tokens_by_replica(served)
    answers = ask(served, REQUESTS, 64)
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    eventually(lambda: (decisions(served) - before).total() >= REQUESTS)
    made = decisions(served) - before
    assert made["soonest"] + made["home"] >= REQUESTS / 2, made
    tokens = list((tokens_by_replica(served) - tokens_before).values())
    assert len(tokens) == 2
    # On shared cores they are not equally fast, but both get requests.
    assert min(tokens) >= 0.1 * sum(tokens), tokens
