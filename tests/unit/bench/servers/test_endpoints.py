"""Running servers are measured unpinned and at a pinned K, and restored afterwards."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from aiohttp import web

from peagle.bench.core.options import LoadOptions
from peagle.bench.core.session import run_job
from peagle.bench.core.statistics import NO_DRAFTS, DraftCounts
from peagle.bench.servers.completions import Completions, client_session
from peagle.bench.servers.endpoint_session import EndpointJob
from peagle.bench.servers.endpoints import Endpoint, EndpointClient, read_counts
from peagle.errors import ConfigError, PeagleError, StartupError
from peagle.host.terminal import Terminal
from support.platforms.http_server import serving
from support.waiting import until

TOKENS, OWN_DEPTH, ACCEPTED = 4, 5, 2
NO_LIMITS = {"floor": 0, "ceiling": None, "pin": None, "paused": False}


@dataclass
class Server:
    """Answers like a server of the platform: each request is one draft with two accepted tokens."""

    limits: dict[str, Any] = field(default_factory=lambda: dict(NO_LIMITS))
    fails_after: int | None = None
    depth_max: int = 7
    exposition: str | None = None
    depth: int = OWN_DEPTH
    pin_s: float = 0.0
    pins: list[int | None] = field(default_factory=list)
    asked: list[tuple[str, int]] = field(default_factory=list)
    url: str = ""

    def app(self) -> web.Application:
        app = web.Application()
        app.add_routes(
            [
                web.get("/v1/models", self.models),
                web.post("/tokenize", self.tokenize),
                web.post("/v1/completions", self.complete),
                web.post("/v1/chat/completions", self.complete),
                web.get("/metrics", self.metrics),
                web.get("/fleet", self.fleet),
                web.get("/fleet/replicas/{id}/depth", self.shown),
                web.put("/fleet/models/m/depth", self.pin),
                web.delete("/fleet/models/m/depth", self.pin),
            ]
        )
        return app

    async def models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "m"}]})

    async def tokenize(self, _: web.Request) -> web.Response:
        return web.json_response({"count": 3, "max_model_len": 100})

    async def complete(self, request: web.Request) -> web.Response:
        body = await request.json()
        if self.fails_after is not None and len(self.asked) >= self.fails_after:
            return web.json_response({"error": {"message": "no room"}}, status=429)
        self.asked.append((request.path, self.depth))
        choice = {"text": "a"} if "prompt" in body else {"delta": {"content": "a"}}
        events = [{"choices": [choice]}, {"choices": [], "usage": {"completion_tokens": TOKENS}}]
        stream = "".join(f"data: {event}\n\n" for event in [*map(json.dumps, events), "[DONE]"])
        return web.Response(text=stream)

    async def metrics(self, _: web.Request) -> web.Response:
        if self.exposition is not None:
            return web.Response(text=self.exposition)
        drafts = sum(depth > 0 for _, depth in self.asked)
        lines = [f'peagle_replica_drafts_total{{model="m",replica="r"}} {drafts}']
        for at in range(1, self.depth_max + 1):
            drafted = sum(depth >= at for _, depth in self.asked)
            accepted = sum(min(depth, ACCEPTED) >= at for _, depth in self.asked)
            place = f'{{model="m",replica="r",position="{at}"}}'
            lines.append(f"peagle_replica_position_draft_tokens_total{place} {drafted}")
            lines.append(f"peagle_replica_position_accepted_tokens_total{place} {accepted}")
        types = sorted({f"# TYPE {line.partition('{')[0]} counter" for line in lines})
        return web.Response(text="\n".join([*types, *sorted(lines), ""]))

    async def fleet(self, _: web.Request) -> web.Response:
        mode = "adaptive" if self.limits["pin"] is None else "pinned"
        replica = {"id": "r", "depth_mode": mode, "depths": [self.depth]}
        return web.json_response({"models": [{"name": "m", "replicas": [replica]}]})

    async def shown(self, _: web.Request) -> web.Response:
        return web.json_response({"limits": self.limits})

    async def pin(self, request: web.Request) -> web.Response:
        pin = (await request.json())["pin"] if request.method == "PUT" else None
        if pin is not None and pin > self.depth_max:
            return web.json_response({"error": {"message": f"pin: {pin} is above {self.depth_max}"}}, status=400)
        self.pins.append(pin)
        self.limits["pin"], self.depth = pin, OWN_DEPTH if pin is None else pin
        await asyncio.sleep(self.pin_s if pin is not None else 0)
        return web.json_response(self.limits)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    """The server on its own port in its own thread, because the commands have their own event loop."""
    with serving(server.app()) as server.url:
        yield server


def job(
    *addresses: str,
    depths: tuple[int, ...] = (),
    prompts: Path | None = None,
    price: float | None = None,
    **load: Any,
) -> EndpointJob:
    given: dict[str, Any] = {"prompts": 3, "tokens": TOKENS, "repeats": 2, "warmup": 0, "prompts_from": prompts} | load
    return EndpointJob.of(addresses, None, depths, (1,), LoadOptions(**given), price)


def measure(wanted: EndpointJob, folder: Path) -> dict[str, Any]:
    folder.mkdir(exist_ok=True)
    with Terminal(folder / "log") as terminal:
        asyncio.run(run_job(wanted, folder, terminal))
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return result


def test_servers_are_held_against_the_first(tmp_path: Path) -> None:
    with running(Server()) as one, running(Server()) as other:
        result = measure(job(f"plain={one.url}/v1", f"new={other.url}", price=3.6), tmp_path / "run")
    rows = result["rows"]
    assert [(row["method"], row["depth"], "ratio_to_first" in row) for row in rows] == [
        ("plain", "as served", False),
        ("new", "as served", True),
    ]
    assert rows[0]["output_tokens_per_s"]["median"] > 0
    costs = [1000 / speed for speed in rows[0]["output_tokens_per_s"]["repeats"]]
    assert rows[0]["cost_per_million_tokens"]["median"] == pytest.approx(median(costs))
    assert (rows[0]["drafts"], rows[0]["acceptance_length"], rows[0]["depth_effective"]) == (6, 3.0, 5.0)
    assert one.pins == []
    assert (tmp_path / "run" / "throughput.svg").stat().st_size
    assert (tmp_path / "run" / "cost.svg").stat().st_size
    report = (tmp_path / "run" / "report.md").read_text()
    assert "| 1 | new | as served |" in report
    assert "cost of 1 M tokens" in report


def test_a_held_depth_is_given_back_after_every_pass(tmp_path: Path) -> None:
    with running(Server()) as server:
        result = measure(job(server.url, depths=(0, 3)), tmp_path / "run")
    assert [row["depth"] for row in result["rows"]] == ["as served", "0", "3"]
    assert [row["acceptance_length"] for row in result["rows"]] == [3.0, None, 3.0]
    assert sorted(depth for _, depth in server.asked) == [0] * 6 + [3] * 6 + [OWN_DEPTH] * 6
    assert server.pins[1::2] == [None] * (len(server.pins) // 2)
    assert server.limits == NO_LIMITS


def test_a_chat_is_asked_as_one(tmp_path: Path) -> None:
    prompts = tmp_path / "question.jsonl"
    prompts.write_text('{"turns": ["Why?"]}\n{"turns": ["How?"]}\n{"prompt": "def"}\n')
    with running(Server()) as server:
        measure(job(server.url, prompts=prompts, repeats=1), tmp_path / "run")
    assert [path for path, _ in server.asked] == ["/v1/chat/completions"] * 2 + ["/v1/completions"]


@pytest.mark.parametrize("exposition", ["", "<html>{not found</html>"])
def test_a_server_that_tells_nothing_of_drafts_is_measured_without(tmp_path: Path, exposition: str) -> None:
    with running(Server(exposition=exposition)) as server:
        (row,) = measure(job(server.url, repeats=1), tmp_path / "run")["rows"]
    assert (row["drafts"], row["acceptance_length"], row["itl_ms_p50"]) == (0, None, None)


def test_what_an_operator_has_decided_stays(tmp_path: Path) -> None:
    with running(Server(limits={**NO_LIMITS, "ceiling": 4})) as server:
        with pytest.raises(ConfigError, match="an operator has limited the depth of m"):
            measure(job(server.url, depths=(3,)), tmp_path / "run")
        assert server.pins == []


def test_a_depth_that_the_server_refuses_is_told_in_its_words(tmp_path: Path) -> None:
    with running(Server()) as server, pytest.raises(ConfigError, match="9 is above 7"):
        measure(job(server.url, depths=(9,)), tmp_path / "run")


def test_a_failure_gives_the_depth_back_and_the_next_start_goes_on(tmp_path: Path) -> None:
    with running(Server(fails_after=7)) as server:
        with pytest.raises(StartupError, match="no room"):
            measure(job(server.url, depths=(3,)), tmp_path / "run")
        assert server.limits == NO_LIMITS
        server.fails_after = None
        measure(job(server.url, depths=(3,)), tmp_path / "run")
    assert len(server.asked) < 7 + 12


def test_a_depth_is_given_back_by_whoever_stops_before_it_is_confirmed() -> None:
    async def pin(url: str) -> None:
        async with client_session({}, trust_env=False) as http:
            client = EndpointClient(Endpoint("a", url, "m"), http, Completions(http, url, "m", TOKENS))
            async with client.pinned(3):
                pytest.fail("it was never confirmed")

    async def stopped(server: Server) -> None:
        pinning = asyncio.create_task(pin(server.url))
        await until(lambda: server.pins == [3])
        pinning.cancel()
        await pinning

    with running(Server(pin_s=4.0)) as server:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(stopped(server))
        assert server.pins == [3, None]


@pytest.mark.parametrize(
    ("addresses", "problem"),
    [
        (("http://a:1", "http://a:1"), "another server has that name"),
        (("x=http://a:1", "x=http://b:1"), "another server has that name"),
        (("=http://a:1",), "another server has that name"),
        (("a:1",), "not a server's URL"),
        (("http://127.0.0.1:1",), "no server answers"),
    ],
)
def test_wrong_addresses_are_refused(addresses: tuple[str, ...], problem: str) -> None:
    with pytest.raises(PeagleError, match=problem):
        job(*addresses)


VLLM = """
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="1",model_name="m"} 10.0
vllm:spec_decode_num_drafts_total{engine="0",model_name="other"} 5.0
# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 8.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 2.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="1",model_name="m",position="0"} 4.0
"""


def test_drafts_of_vllm_s_own_server_are_read_too() -> None:
    assert read_counts(VLLM, "m") == DraftCounts(20, (20, 20), (12, 2))
    assert read_counts("# no drafts\n", "m") == NO_DRAFTS
