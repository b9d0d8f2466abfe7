"""Under load, the Router, a replica, an engine that ends, one that hangs, and a Ray node are lost one after the other.
Every request that was sent is accounted for: answered with the right tokens, or ended with an error event where its
replica was lost midway.
"""

import asyncio
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import httpx
import psutil
import pytest
from rich.console import Console
from rich.table import Table

from peagle.api.api_settings import ApiSettings
from peagle.config import load_deployment
from peagle.host import processes
from peagle.serve.app import compose
from peagle.serve.launch import ray_cluster
from support.engines.engine_runner import held_out
from support.platforms.served import free_port, write_deployment

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(1500)]

REPLICAS, CLIENTS, PROMPTS, TOKENS = 3, 6, 8, 48
STEADY_S = 8.0
PATIENCE_S = 400.0
RETRIES_MAX = 40
# A stall is detected after 3 s, on a busy machine after 20 steps; no request waits until an engine is ended.
HUNG_AFTER_S, FIRST_TOKEN_MAX_S = 30.0, 15.0
OUTCOMES = ("answered", "error event", "refused", "broken", "wrong")
_RETRIES = re.compile(r"^peagle_request_retries_total\{[^}]*\} (\d+)", re.MULTILINE)


class Fleet:
    """Two Ray nodes: the head has capacity for all replicas except one, which runs on the other."""

    def __init__(self, folder: Any) -> None:
        import ray
        from ray import serve
        from ray.cluster_utils import Cluster

        # float32: in bfloat16 a batch's size can turn a close choice, and tokens are compared.
        file = write_deployment(
            folder,
            engine={"enforce_eager": True, "dtype": "float32"},
            replicas={"min": REPLICAS, "max": REPLICAS, "hung_after_s": HUNG_AFTER_S},
        )
        self.deployment = load_deployment(file)
        self._cluster = Cluster()
        # One CPU for the ingress, in addition to the head's replicas.
        self._cluster.add_node(num_cpus=REPLICAS, include_dashboard=False)
        self.add_node()
        ray.init(address=self._cluster.address, log_to_driver=False)
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        serve.start(proxy_location="HeadOnly", http_options={"host": "127.0.0.1", "port": port})
        serve.run(compose([self.deployment], ApiSettings()))

    def add_node(self) -> None:
        self._node = self._cluster.add_node(num_cpus=1)

    def ingress_is_on_the_node(self) -> bool:
        """Whether the node runs the ingress that relays every stream: Serve chose its node."""
        from ray.serve.context import _get_global_client

        details = _get_global_client().get_serve_details()
        replicas = details["applications"]["default"]["deployments"]["Ingress"]["replicas"]
        return any(replica["node_id"] == self._node.node_id for replica in replicas)

    def replace_node(self) -> None:
        """Lose the node that is not the head, and add another."""
        self._cluster.remove_node(self._node, allow_graceful=False)
        self.add_node()

    def lose(self, name: str) -> None:
        """Kill the Serve replica whose actor name contains `name`."""
        import ray

        actor = next(each for each in ray.util.list_named_actors(all_namespaces=True) if name in each["name"])
        ray.kill(ray.get_actor(actor["name"], actor["namespace"]), no_restart=True)

    def lose_engine(self) -> None:
        """Kill an engine whose replica stays alive and fails all requests until Serve detects it."""
        self._engine_at_work().kill()

    def stop_engine(self) -> None:
        """Stop an engine like a hanging driver or kernel: the process exists, but does nothing."""
        self._stopped = self._engine_at_work()
        self._stopped.suspend()

    @property
    def stopped_engine_is_there(self) -> bool:
        return self._stopped.is_running() and self._stopped.status() == psutil.STATUS_STOPPED

    def _engine_at_work(self) -> psutil.Process:
        below = psutil.Process().children(recursive=True)
        # The actor of a replica lost before may still exist, dead.
        alive = [each for each in below if "EngineCore" in each.name() and each.status() != psutil.STATUS_ZOMBIE]
        # On shared cores dispatch may leave an engine idle for a while; its loss would have no effect.
        return max(alive, key=lambda each: each.status() == psutil.STATUS_RUNNING)

    def stop(self) -> None:
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()
        self._cluster.shutdown()
        processes.end_descendants(patience_s=10.0)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    processes.adopt_orphans()
    with patch.dict(os.environ):  # later processes are not part of this cluster
        ray_cluster.prepare_environment()
        fleet = Fleet(tmp_path_factory.mktemp("fleet"))
        try:
            yield fleet
        finally:
            fleet.stop()


@dataclass
class Load:
    """Clients that send requests one by one, and the outcome of each, by the last loss."""

    http: httpx.AsyncClient
    model: str
    right: dict[str, str] = field(default_factory=dict)
    after: str = "nothing"
    sent: int = 0
    ended: dict[str, Counter[str]] = field(default_factory=dict)
    retried: Counter[str] = field(default_factory=Counter)
    first_token_s_max: dict[str, float] = field(default_factory=dict)
    odd: list[str] = field(default_factory=list)

    async def ask(self, prompt: str) -> tuple[str, str]:
        """Return the outcome and the received text."""
        body = {"model": self.model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True}
        text, error, whole, asked_s = "", "", False, time.monotonic()
        try:
            async with self.http.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != 200:
                    return "refused", (await answer.aread()).decode()
                async for line in answer.aiter_lines():
                    if line == "data: [DONE]":
                        whole = True
                    elif line.startswith("data: "):
                        if not text:
                            waited_s = max(time.monotonic() - asked_s, self.first_token_s_max.get(self.after, 0.0))
                            self.first_token_s_max[self.after] = waited_s
                        event = json.loads(line.removeprefix("data: "))
                        error = error or json.dumps(event.get("error") or "")[:200].strip('"')
                        text += "".join(choice["text"] for choice in event.get("choices", ()))
        except httpx.HTTPError as problem:
            return "broken", repr(problem)
        expected = self.right.get(prompt, text)
        if not expected.startswith(text) or (whole and text != expected):
            return "wrong", text
        if error:
            return "error event", error
        return ("answered" if whole else "broken"), text

    async def keep_asking(self, first: int, enough: asyncio.Event) -> None:
        prompts = list(self.right)
        while not enough.is_set():
            self.sent += 1
            outcome, said = await self.ask(prompts[first % len(prompts)])
            # Counted at its end: a loss affects requests in progress.
            self.ended.setdefault(self.after, Counter())[outcome] += 1
            if outcome != "answered":
                self.odd.append(f"after {self.after}: {outcome}: {said[:300]}")
            first += 1

    async def retries(self) -> int:
        text = (await self.http.get("/metrics")).raise_for_status().text
        return sum(int(count) for count in _RETRIES.findall(text))

    def table(self) -> Table:
        table = Table("after losing", "ended", *OUTCOMES, "retried", "first token, s at most")
        for after, ended in self.ended.items():
            counts = [str(ended[outcome]) for outcome in OUTCOMES]
            waited = f"{self.first_token_s_max.get(after, 0.0):.1f}"
            table.add_row(after, str(ended.total()), *counts, str(self.retried[after]), waited)
        table.caption = f"{self.sent} were sent."
        return table


@asynccontextmanager
async def under_load(fleet: Fleet):  # type: ignore[no-untyped-def]
    async with httpx.AsyncClient(base_url=fleet.url, timeout=180) as http:
        load = Load(http, fleet.deployment.name)
        for prompt in held_out(PROMPTS):
            outcome, text = await load.ask(prompt)
            assert outcome == "answered", text
            load.right[prompt] = text
        enough = asyncio.Event()
        clients = [asyncio.create_task(load.keep_asking(client, enough)) for client in range(CLIENTS)]
        try:
            yield load
        finally:
            enough.set()
            await asyncio.gather(*clients)


async def until(holds: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < deadline, f"{what} did not come"
        await asyncio.sleep(1.0)


async def test_whatever_is_lost_every_request_is_accounted_for(fleet: Fleet) -> None:
    async with under_load(fleet) as load:

        async def rows() -> list[dict[str, Any]]:
            answer = await load.http.get("/fleet")
            models = answer.json()["models"] if answer.status_code == 200 else []
            return models[0]["replicas"] if models else []

        async def all_there() -> bool:
            return len(await rows()) == REPLICAS

        async def plans_are_fresh() -> bool:
            there = await rows()
            return len(there) == REPLICAS and all((row["plan_age_s"] or 99) < 3 for row in there)

        async def lose_the_busiest() -> None:
            # Load reports are soon stale: the replica is lost directly after its load is read.
            busiest: dict[str, Any] = {}

            async def works() -> bool:
                busiest.update(max(await rows(), key=lambda row: row["running_requests"]))
                return bool(busiest["running_requests"] >= 2)

            await until(works, "a replica's work")
            fleet.lose(busiest["id"])

        async def lose(what: str, act: Callable[[], Any], back: Callable[[], Any]) -> None:
            before = await load.retries()
            if (acting := act()) is not None:
                await acting
            load.after = what
            await asyncio.sleep(STEADY_S)
            await until(back, f"{what} again")
            await asyncio.sleep(STEADY_S)
            after = await load.retries()
            load.retried[what] = after - before if after >= before else after  # the ingress may have been lost, too

        await until(plans_are_fresh, "every replica's plan")
        await asyncio.sleep(STEADY_S)
        await lose("the Router", lambda: fleet.lose("#Router#"), plans_are_fresh)
        await lose("a replica", lose_the_busiest, all_there)
        await lose("an engine", fleet.lose_engine, all_there)

        async def stopped_one_is_replaced() -> bool:
            states = [row["state"] for row in await rows()]
            told.update(states)
            return not fleet.stopped_engine_is_there and states == ["ready"] * REPLICAS

        told: set[str] = set()
        await lose("an engine that hangs", fleet.stop_engine, stopped_one_is_replaced)
        assert "stalled" in told
        ingress_goes = fleet.ingress_is_on_the_node()
        await lose("a node", fleet.replace_node, all_there)

    Console(width=120).print(load.table(), *load.odd)
    assert sum(ended.total() for ended in load.ended.values()) == load.sent
    assert load.first_token_s_max["an engine that hangs"] < FIRST_TOKEN_MAX_S
    for what in ("a replica", "an engine", "an engine that hangs"):
        assert load.ended[what]["error event"] + load.retried[what] > 0, f"{what} was idle"
    losing_answers = ("a replica", "an engine", "an engine that hangs", "a node")
    for after, ended in load.ended.items():
        assert ended["answered"] > CLIENTS, after
        # A dead engine is detected within a few reports; until then each client may meet it, but not repeatedly.
        assert load.retried[after] <= RETRIES_MAX, after
        assert ended["wrong"] == ended["broken"] == 0, after
        # Serve's proxy refuses requests that a lost ingress has not begun to answer.
        assert ended["refused"] <= (CLIENTS if after == "a node" and ingress_goes else 0), after
        # A lost replica breaks only the streams that it was answering.
        assert ended["error event"] <= (CLIENTS if after in losing_answers else 0), after
