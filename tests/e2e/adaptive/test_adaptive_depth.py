"""The depth loop on the served platform: plans arrive, operators limit K, and losing the Router loses nothing."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from peagle.serve.reporting import TRIAL_S
from support.platforms.served import Served
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(1500)]

PROMPT = "def read_lines(path):\n    with open(path) as file:"


@pytest.fixture
def load(adaptive: Served) -> Iterator[list[Any]]:
    """Send greedy completions one by one while a test runs; yields their texts, and any exception."""
    ended = threading.Event()
    answers: list[Any] = []

    def ask() -> None:
        while not ended.is_set():
            try:
                answers.append(adaptive.complete(PROMPT, 64)["choices"][0]["text"])
            except Exception as error:  # the test looks at it
                answers.append(error)

    client = threading.Thread(target=ask)
    client.start()
    yield answers
    ended.set()
    client.join()


http = partial(httpx.request, timeout=PATIENCE_S)


def replica(served: Served) -> dict[str, Any]:
    """Return the replica's row. Its depths are missing while its engine does not answer, in a long step."""
    return eventually(lambda: next((row for row in served.fleet() if row["depths"]), None))


def depth_url(served: Served) -> str:
    return f"{served.url}/fleet/replicas/{replica(served)['id']}/depth"


def test_steps_are_timed_before_the_first_request_and_count_for_nothing_else(adaptive: Served) -> None:
    eventually(lambda: replica(adaptive)["depth_mode"] != "static")
    assert http("GET", depth_url(adaptive)).json()["calibrated_points"] > 6
    shown = replica(adaptive)
    assert (shown["generation_tokens"], shown["drafts"], shown["accepted"]) == (0, 0, 0)
    assert set(shown["depths"]) == {7}
    metrics = http("GET", f"{adaptive.url}/metrics").text
    counted = [line for line in metrics.splitlines() if line.startswith("peagle_replica_generation_tokens_total{")]
    assert [float(line.rsplit(" ", 1)[1]) for line in counted] == [0.0]


def test_under_load_a_plan_comes_and_says_what_it_rests_on(adaptive: Served, load: list[Any]) -> None:
    eventually(lambda: replica(adaptive)["depth_mode"] in ("adaptive", "probing"))
    eventually(lambda: bool(http("GET", depth_url(adaptive)).json()["ranges"][0]["measured_tokens_per_s"]))
    seen = http("GET", depth_url(adaptive)).json()
    assert seen["model"] == adaptive.model
    assert len(seen["survival"]) == 7
    assert sorted(map(int, seen["ranges"][0]["predicted_tokens_per_s"])) == [0, 1, 2, 3, 5, 7]
    assert seen["evidence_drafts"] > 0
    assert all(change["age_s"] >= 0 for change in seen["log"])


def test_fleet_and_status_say_what_speculation_gains_with_its_interval(adaptive: Served, load: list[Any]) -> None:
    # A row is without the Router's estimates if they come late.
    seen = eventually(lambda: next((row for row in [replica(adaptive)] if row.get("speedup_ratio") is not None), None))
    assert 0 < seen["speedup_low"] <= seen["speedup_ratio"] <= seen["speedup_high"]
    command = [sys.executable, "-m", "peagle.cli", "status", "--url", adaptive.url]

    def says_both() -> bool:
        said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S).stdout
        tells_k = re.search(rf"^{seen['id']}: K ", said, re.MULTILINE)
        return bool(tells_k and re.search(r"speculation (speedup|is off)", " ".join(said.split())))

    eventually(says_both)


def test_a_pin_holds_at_once_and_outputs_stay_as_they_are(adaptive: Served, load: list[Any]) -> None:
    try:
        for depth in (0, 2, 7):
            assert http("PUT", depth_url(adaptive), json={"pin": depth}).raise_for_status().json()["pin"] == depth
            eventually(lambda depth=depth: set(replica(adaptive)["depths"]) == {depth})  # type: ignore[misc]
            assert replica(adaptive)["depth_mode"] == "pinned"
            before = len(load)
            eventually(lambda before=before: len(load) > before + 1)  # type: ignore[misc]
    finally:
        http("DELETE", depth_url(adaptive)).raise_for_status()
    eventually(lambda: replica(adaptive)["depth_mode"] != "pinned")
    assert len(set(load)) == 1, load


def test_a_model_is_bounded_as_a_whole_and_its_replicas_own_limits_win(adaptive: Served, load: list[Any]) -> None:
    model_url = f"{adaptive.url}/fleet/models/{adaptive.model}/depth"
    try:
        http("PUT", model_url, json={"pin": 3}).raise_for_status()
        eventually(lambda: set(replica(adaptive)["depths"]) == {3})
        http("PUT", depth_url(adaptive), json={"pin": 5}).raise_for_status()
        eventually(lambda: set(replica(adaptive)["depths"]) == {5})
    finally:
        http("DELETE", model_url).raise_for_status()
        http("DELETE", depth_url(adaptive)).raise_for_status()
    assert http("PUT", f"{adaptive.url}/fleet/models/nothing/depth", json={"pin": 1}).status_code == 404
    assert "ceiling" in http("PUT", model_url, json={"ceiling": 8}).json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "said"),
    [({"pin": 8}, "pin"), ({"pin": "3"}, "pin"), ({"pni": 3}, "pni"), ({"ceiling": 99}, "ceiling")],
)
def test_a_wrong_limit_is_refused_by_name(adaptive: Served, body: dict[str, Any], said: str) -> None:
    answer = http("PUT", depth_url(adaptive), json=body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def test_an_unknown_replica_is_a_404(adaptive: Served) -> None:
    answer = http("GET", f"{adaptive.url}/fleet/replicas/nobody/depth")
    assert answer.status_code == 404
    assert "nobody" in answer.json()["error"]["message"]


def test_losing_the_router_loses_no_request_and_it_comes_back(adaptive: Served, load: list[Any]) -> None:
    eventually(lambda: (replica(adaptive)["plan_age_s"] or 99) < 2)
    router = router_process(adaptive)
    router.kill()
    depths = replica(adaptive)["depths"]
    # Until another Router runs, plans age and the last plan stays in force. Only a trial of another K is ended.
    held = eventually(lambda: next((row for row in [replica(adaptive)] if row["plan_age_s"] > 2), None))
    assert held["depths"] == depths or held["plan_age_s"] > TRIAL_S
    eventually(lambda: replica(adaptive)["plan_age_s"] < 2)
    assert router_process(adaptive).pid != router.pid
    assert load
    assert len(set(load)) == 1, load


def router_process(served: Served) -> psutil.Process:
    served.remember_family()
    return next(each for each in served.family if each.is_running() and _is_router(each))


def _is_router(process: psutil.Process) -> bool:
    try:
        return any("ServeReplica" in part and "Router" in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_the_log_of_the_launcher_names_each_change(adaptive: Served) -> None:
    assert Path(adaptive.log).exists()
    eventually(lambda: "Depth table" in adaptive.log.read_text(encoding="utf-8", errors="replace"))


def test_a_benchmark_of_the_running_server_holds_its_depth_and_gives_it_back(adaptive: Served, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "peagle.cli", "bench", "endpoints", adaptive.url, "--out", str(tmp_path)]
    options = "--depths 0,3 --concurrency 2 --prompts 4 --tokens 24 --repeats 1 --warmup 0"
    subprocess.run([*command, *options.split()], check=True, timeout=PATIENCE_S * 3)
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert [row["depth"] for row in rows] == ["as served", "0", "3"]
    assert [row["depth_effective"] for row in rows[1:]] == [None, pytest.approx(3, abs=0.3)]
    assert len(rows[2]["acceptance_by_position"]) == 3
    eventually(lambda: replica(adaptive)["depth_mode"] != "pinned")
