"""No client can block others: hostile requests, within the limits and beyond, next to short ones.

Each is sent again and again for a while, and between such whiles there are quiet ones. A usual client asks in both, for
a short text and for one that follows a schema never seen before. The table of figures is printed (`-s`).
`PEAGLE_TEST_HOSTILE_S=10` makes the whiles so long that 95th percentiles are judged.
"""

import itertools
import json
import math
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.platforms.served import Served

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

CHAT, COMPLETIONS, TOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize"
# Answers to hostile requests, and the engines' memory afterwards.
ANSWER_S, MEMORY_BYTES = 5.0, 100 * 2**20
SLOWER_MOST = 2.0
# Duration of a measurement, and the number of retries after a slow one, because the machine is slow now and then.
QUIET_S, HOSTILE_S, TRIES = 1.0, float(os.environ.get("PEAGLE_TEST_HOSTILE_S", "2")), 4
# For fewer requests the 95th percentile is the slowest one, which depends on the machine: then the median must hold.
ENOUGH = 20


def completion(**fields: Any) -> dict[str, Any]:
    return {"prompt": "import os\n", "max_tokens": 4, "temperature": 0, **fields}


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "import os"}], "max_tokens": 4, **fields}


def schema(**fields: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": fields}}}


def required(count: int) -> dict[str, Any]:
    names = [f"property_{number}" for number in range(count)]
    return {
        "type": "object", "properties": {name: {"type": "integer"} for name in names}, "required": names,
        "additionalProperties": False,
    }  # fmt: skip


def tools(count: int) -> dict[str, Any]:
    listed = [
        {"type": "function", "function": {"name": f"call_{number}", "parameters": required(8)}}
        for number in range(count)
    ]
    return {"tools": listed, "tool_choice": {"type": "function", "function": {"name": "call_0"}}}


def rules(count: int) -> str:
    alternatives = (
        f'r{i} ::= r{(i * 7 + 1) % count} r{(i * 5 + 3) % count} | "a" | [a-z] r{(i + 1) % count}' for i in range(count)
    )
    return "\n".join(("root ::= r0", *alternatives))


DEEP_CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[" * 100_000 + "]" * 100_000}}
LONG_PATTERN = "(" + "|".join(f"[a-z]{{{number}}}x" for number in range(1, 500)) + ")*"
CHAIN = "\n".join(("root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}?" for i in range(1500)), "r1500 ::= [a-z]*"))

Body = Callable[[int], dict[str, Any]]
Measure = Callable[[list[float]], float]
# Hostile requests by kind: route, and a numbered body, because a repeated grammar would be cached.
HOSTILE: dict[str, tuple[str, Body]] = {
    "an enumeration of 2,500": (
        COMPLETIONS,
        lambda sent: completion(**schema(type="string", enum=[f"{sent} {i}" for i in range(2500)])),
    ),
    "nested repetitions": (
        COMPLETIONS,
        lambda sent: completion(structured_outputs={"regex": f"((a{{1,60}}){{1,60}}){{1,60}}{sent}"}),
    ),
    "2,500 choices": (
        COMPLETIONS,
        lambda sent: completion(structured_outputs={"choice": [f"{sent} {i}" for i in range(2500)]}),
    ),
    "a long pattern": (COMPLETIONS, lambda sent: completion(structured_outputs={"regex": f"{LONG_PATTERN}{sent}"})),
    "512 tools": (CHAT, lambda sent: chat(**tools(512))),
    "128 answers": (COMPLETIONS, lambda sent: completion(n=128)),
    "a giant prompt": (COMPLETIONS, lambda sent: completion(prompt=f"{sent} " + "a = b\n" * 2**17)),
    "15 MB to tokenize": (TOKENIZE, lambda sent: {"prompt": f"{sent} " + "word " * 3_000_000}),
    "400,000 messages": (CHAT, lambda sent: {"messages": [{"role": "user", "content": "a"}] * 400_000}),
    "deep JSON in a text": (
        CHAT,
        lambda sent: {"messages": [{"role": "assistant", "content": None, "tool_calls": [DEEP_CALL]}]},
    ),
    "5,000 required properties": (COMPLETIONS, lambda sent: completion(**schema(**required(5000), title=f"{sent}"))),
    "a pattern that explodes": (
        COMPLETIONS,
        lambda sent: completion(structured_outputs={"regex": f"(.*a.*b.*c){{40}}(a|a?b|a?b?c){{400}}{sent}"}),
    ),
    "rules that explode": (
        COMPLETIONS,
        lambda sent: completion(structured_outputs={"grammar": f'{rules(1200)} | "{sent}"'}),
    ),
    "deep recursion": (COMPLETIONS, lambda sent: completion(structured_outputs={"grammar": f'{CHAIN} | "{sent}"'})),
}
# Number of bodies of each kind; of large ones, one.
BODIES, LARGE_BYTES = 24, 2**20
STALLS = ("peagle_ingress_loop_stall_seconds", "peagle_replica_loop_stall_seconds")
SLOW_READER = "a slow reader"


@dataclass(slots=True)
class Row:
    """Times of a normal client's requests during hostile ones, and of the hostile requests' answers."""

    plain: list[float] = field(default_factory=list)
    constrained: list[float] = field(default_factory=list)
    answered: list[tuple[float, int]] = field(default_factory=list)
    stalls: str = ""


class Client:
    """A normal client that sends short requests one by one."""

    def __init__(self, http: httpx.Client) -> None:
        self._http, self._numbers = http, itertools.count()

    def ask(self, row: Row, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            number = next(self._numbers)
            row.plain.append(self._time(completion(max_tokens=8)))
            small = {
                "type": "object", "title": f"{time.time()} {number}", "required": ["a"],
                "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 1}},
            }  # fmt: skip
            row.constrained.append(self._time(completion(**schema(**small), max_tokens=16)))

    def _time(self, body: dict[str, Any]) -> float:
        began_s = time.monotonic()
        answer = self._http.post(COMPLETIONS, json=body)
        assert answer.status_code == 200, answer.text
        return time.monotonic() - began_s


@contextmanager
def under(attack: Callable[[], None]) -> Iterator[None]:
    """Call `attack` repeatedly in a thread; at the end, the last call is awaited."""
    over = threading.Event()
    failed: list[Exception] = []

    def keep_on() -> None:
        try:
            while not over.is_set():
                attack()
                # Refusing a client at once is not a denial of service by itself.
                over.wait(0.05)
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=keep_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert failed == []


def send(http: httpx.Client, path: str, raw: bytes, row: Row) -> None:
    began_s = time.monotonic()
    try:
        status = http.post(path, content=raw, headers={"content-type": "application/json"}).status_code
    except httpx.TimeoutException:
        status = 0
    row.answered.append((time.monotonic() - began_s, status))


def attack_of(name: str, row: Row, http: httpx.Client, sent: Iterator[int]) -> Callable[[], None]:
    """Return the attack to repeat. All bodies are made in advance, because that would delay the normal client."""
    if name == SLOW_READER:
        return lambda: read_slowly(http)
    path, body = HOSTILE[name]
    raws = [json.dumps(body(next(sent))).encode()]
    while len(raws[0]) < LARGE_BYTES and len(raws) < BODIES:
        raws.append(json.dumps(body(next(sent))).encode())
    again = itertools.cycle(raws)
    return lambda: send(http, path, next(again), row)


def read_slowly(http: httpx.Client) -> None:
    """Open a stream, and do not read from it for a while."""
    with (
        suppress(httpx.ReadTimeout),
        http.stream("POST", COMPLETIONS, json=completion(stream=True, max_tokens=900, ignore_eos=True)) as answer,
    ):
        assert answer.status_code == 200
        time.sleep(HOSTILE_S)


def p95(seconds: list[float]) -> float:
    return sorted(seconds)[math.ceil(0.95 * len(seconds)) - 1]


def stall_counts(http: httpx.Client) -> dict[str, Counter[float]]:
    """Return the event loop stalls so far by bucket, of ingress processes and of replicas."""
    found: dict[str, Counter[float]] = {}
    for family in text_string_to_metric_families(http.get("/metrics").raise_for_status().text):
        if family.name in STALLS:
            below = dict[tuple[str, ...], float]()
            for sample in family.samples:
                if "le" in sample.labels:
                    process = tuple(value for name, value in sorted(sample.labels.items()) if name != "le")
                    counts = found.setdefault(family.name, Counter())
                    counts[float(sample.labels["le"])] += round(sample.value - below.get(process, 0))
                    below[process] = sample.value
    return found


def longest(before: dict[str, Counter[float]], after: dict[str, Counter[float]]) -> str:
    """Return the bucket bound of the longest stall between two readings, of ingress processes and of replicas."""
    return "/".join(f"{max((after[name] - before[name]).keys(), default=0):g}" for name in STALLS)


def engines(served: Served) -> dict[int, psutil.Process]:
    served.remember_family()
    found = {}
    for process in served.family:
        with suppress(psutil.NoSuchProcess):
            line = " ".join(process.cmdline())
            if "EngineCore" in line or "ServeReplica" in line:
                found[process.pid] = process
    return found


def resident(processes: dict[int, psutil.Process]) -> dict[int, int]:
    return {pid: process.memory_info().rss for pid, process in processes.items()}


def test_hostile_requests_hold_up_nobody_else(served: Served) -> None:
    with (
        httpx.Client(base_url=served.url, timeout=60) as usual_http,
        httpx.Client(base_url=served.url, timeout=4 * ANSWER_S) as hostile_http,
    ):
        client, quiet = Client(usual_http), Row()
        client.ask(Row(), 2 * QUIET_S)
        processes = engines(served)
        before = resident(processes)
        assert len(before) >= 2 * served.replicas
        rows = {name: Row() for name in (*HOSTILE, SLOW_READER)}
        sent = itertools.count(int(time.time()))
        slow, answered = list(rows), list[tuple[float, int]]()
        for _ in range(TRIES):
            for name in slow:
                client.ask(quiet, QUIET_S)
                row = rows[name] = Row()
                attack = attack_of(name, row, hostile_http, sent)
                stalls = stall_counts(usual_http)
                with under(attack):
                    client.ask(row, HOSTILE_S)
                row.stalls = longest(stalls, stall_counts(usual_http))
                answered += row.answered
            slow = [name for name in slow if is_slow(rows[name], quiet)]
        after = resident(processes)
        grown = {
            " ".join((*process.cmdline()[:1], str(pid))): after[pid] - before[pid] for pid, process in processes.items()
        }
        print(f"\n{table(rows, quiet)}")
        print(*(f"{name}: {grown_bytes / 2**20:.0f} MB more" for name, grown_bytes in grown.items()), sep="\n")
    assert slow == []
    assert [each for each in answered if each[1] >= 500] == []
    assert max(grown.values()) < MEMORY_BYTES


def is_slow(row: Row, quiet: Row) -> bool:
    """Whether the normal client was held up, or a hostile request was answered late."""
    return max(slower(row, quiet, judged(row))) >= SLOWER_MOST or any(each[0] > ANSWER_S for each in row.answered)


def judged(row: Row) -> Measure:
    return p95 if len(row.plain) >= ENOUGH else median


def slower(row: Row, quiet: Row, measure: Measure) -> tuple[float, float]:
    return measure(row.plain) / measure(quiet.plain), measure(row.constrained) / measure(quiet.constrained)


def table(rows: dict[str, Row], quiet: Row) -> str:
    lines = [f"quiet: p95 {p95(quiet.plain):.3f} s plain, {p95(quiet.constrained):.3f} s with a schema"]
    for name, row in rows.items():
        (plain, constrained), (usually, usually_constrained) = slower(row, quiet, p95), slower(row, quiet, median)
        answers = f"{max(row.answered)[0]:.2f} s, {sorted({each[1] for each in row.answered})}" if row.answered else "-"
        asked = f"{len(row.plain)} asked"
        lines.append(
            f"{name:28} p95: plain x{plain:.2f}  schema x{constrained:.2f}  "
            f"median: x{usually:.2f}, x{usually_constrained:.2f}  ({asked})  "
            f"loops stalled <= {row.stalls} s  answered in {answers}"
        )
    return "\n".join(lines)
