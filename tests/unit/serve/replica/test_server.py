"""A replica's status in the fleet, and its reports to the Router."""

import asyncio
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.errors import EngineStalledError
from peagle.router.snapshot import DepthTable, StepStats
from peagle.serve.replica import server
from peagle.serve.replica.engine_sums import Buckets
from peagle.serve.replica.server import STATIC, PeagleServer
from support.virtual_time import in_virtual_time


class Replica(PeagleServer):
    """A server without Ray, whose engine answers, fails, dies during a call, or is in an endless step."""

    _plan = STATIC

    def __init__(self, engine: str, errored: bool = False) -> None:
        self._watch: Any = SimpleNamespace(stalled=engine == "stalled", stalls=0)
        load = SimpleNamespace(running_requests=1, waiting_requests=0, kv_usage_ratio=0.5, generation_tokens=9)
        self._listener: Any = SimpleNamespace(load=load, sums=SimpleNamespace(plain=dict))
        self.engine = SimpleNamespace(_engine_client=SimpleNamespace(errored=errored))
        speculation = SimpleNamespace(live_depth=True)
        self._deployment: Any = SimpleNamespace(speculates=True, speculation=speculation, devices=1)
        self._reporter: Any = SimpleNamespace(report=self._read_step_stats, changes={}, status=STATIC)
        self._stalls = Buckets((1.0,))
        self._gate, self._warm_up_s = SimpleNamespace(slow=0), 0.5
        self._behaves, self.told, self.told_in_time = engine, 0, True

    async def _read_step_stats(self) -> StepStats:
        if self._behaves in ("dies", "fails"):
            self.engine._engine_client.errored = self._behaves == "dies"
            raise RuntimeError("not now")
        if self._behaves == "stuck":
            await asyncio.Event().wait()
        return StepStats(DepthTable(1, (7,)), 7, ())

    async def _ask_router(self, *_: Any) -> Any:
        self.told += 1
        if not self.told_in_time:
            await asyncio.Event().wait()

    async def check_health(self) -> None:
        """Healthy, like an engine that has not ended."""

    def __del__(self) -> None:
        """Nothing to stop."""


@pytest.fixture(autouse=True)
def named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "replica_id", lambda: "r")
    monkeypatch.setattr(server, "get_node_ip_address", lambda: "node")


@pytest.mark.parametrize(
    ("engine", "errored", "state"),
    [
        ("well", False, "ready"),
        ("stuck", False, "ready"),
        ("stalled", False, "stalled"),
        ("dies", False, "dead"),
        ("well", True, "dead"),
    ],
)
@in_virtual_time
async def test_a_replica_tells_how_it_is_whatever_its_engine_does(engine: str, errored: bool, state: str) -> None:
    for said in (await Replica(engine, errored).replica_status(), await Replica(engine, errored).replica_metrics()):
        assert (said["state"], said["generation_tokens"]) == (state, 9)
        assert ("depth_mode" in said) is (engine in ("well", "stalled") and not errored)


@in_virtual_time
async def test_a_failure_of_an_engine_that_lives_is_not_hidden() -> None:
    with pytest.raises(RuntimeError, match="not now"):
        await Replica("fails").replica_status()


@in_virtual_time
async def test_dispatchers_hear_of_a_replica_in_a_long_step_again_and_again() -> None:
    replica = Replica("stuck")
    await replica.report()
    assert replica.told >= 2
    replica.told_in_time = False
    with pytest.raises(TimeoutError):
        await replica.report()
    well = Replica("well")
    await well.report()
    assert well.told == 0  # the report itself tells of it
    dead = Replica("well", errored=True)
    await dead.report()
    assert dead.told == 1


@pytest.mark.parametrize(("engine", "ready"), [("well", True), ("stalled", False)])
@in_virtual_time
async def test_a_replica_whose_engine_has_stalled_is_not_ready_and_yet_not_replaced(engine: str, ready: bool) -> None:
    replica = Replica(engine)
    await replica.check_health()
    with nullcontext() if ready else pytest.raises(EngineStalledError):
        await replica.check_ready()
