"""Two real engines behind one address: requests are placed by what the engines report, and both have their share."""

import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from support.served import Served, up, write_deployment

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

PROMPT = "def read_lines(path):\n    with open(path) as file:"
REQUESTS, AT_ONCE = 40, 8
PATIENCE_S = 30.0
_DECISION = re.compile(r'^peagle_dispatch_decisions_total\{[^}]*reason="([^"]+)"\} (\d+)', re.MULTILINE)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("pair")
    # float32: in bfloat16 a batch's size can turn a close choice, and the texts are compared.
    deployment = write_deployment(
        folder, engine={"enforce_eager": True, "dtype": "float32"}, replicas={"min": 2, "max": 2}
    )
    with up(folder, deployment) as platform:
        yield platform


def decisions(served: Served) -> Counter[str]:
    text = httpx.get(f"{served.url}/metrics").raise_for_status().text
    return Counter({reason: int(count) for reason, count in _DECISION.findall(text)})


def test_requests_go_where_reports_say_they_finish_first(pair: Served) -> None:
    before = decisions(pair)
    with ThreadPoolExecutor(AT_ONCE) as clients:
        answers = list(clients.map(lambda _: pair.complete(PROMPT, 64), range(REQUESTS)))
    assert len({answer["choices"][0]["text"] for answer in answers}) == 1
    deadline = time.monotonic() + PATIENCE_S
    while (decisions(pair) - before).total() < REQUESTS:
        assert time.monotonic() < deadline, decisions(pair)
        time.sleep(0.25)
    made = decisions(pair) - before
    # Until an engine has finished a request it cannot say how fast it is.
    assert made["soonest"] + made["home"] >= REQUESTS / 2, made
    tokens = [row["generation_tokens"] for row in pair.fleet()]
    assert len(tokens) == 2
    # On a machine whose cores they share they are not equally fast, but neither is passed over.
    assert min(tokens) >= 0.1 * sum(tokens), tokens
