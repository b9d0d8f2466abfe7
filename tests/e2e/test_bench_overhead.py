"""`peagle bench overhead` on real servers: a small run from start to report, with no process left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from support.platforms.served import START_TIMEOUT_S, write_deployment

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(1500)]

SIDES = ("vllm", "peagle")
RUN_TIMEOUT_S = 2 * START_TIMEOUT_S


def test_both_servers_give_the_same_texts_and_the_report_says_what_the_platform_costs(tmp_path: Path) -> None:
    deployment = write_deployment(tmp_path, engine={"enforce_eager": True})
    folder = tmp_path / "results"
    command = [
        sys.executable,
        "-m",
        "peagle.cli",
        "bench",
        "overhead",
        str(deployment),
        "--sides",
        ",".join(SIDES),
    ]
    command += ["--concurrency", "1", "--prompts", "2", "--tokens", "8", "--repeats", "1", "--eager", "--out"]
    output = tmp_path / "output.txt"
    family: dict[int, psutil.Process] = {}
    with output.open("wb") as sink:
        bench = subprocess.Popen([*command, str(folder)], stdout=sink, stderr=sink, env=os.environ)
    try:
        deadline = time.monotonic() + RUN_TIMEOUT_S
        while bench.poll() is None and time.monotonic() < deadline:
            family |= {child.pid: child for child in psutil.Process(bench.pid).children(recursive=True)}
            time.sleep(0.5)
    finally:
        if bench.poll() is None:
            bench.send_signal(signal.SIGINT)
            bench.wait(START_TIMEOUT_S)
    assert bench.returncode == 0, output.read_text()
    assert [child.pid for child in family.values() if child.is_running()] == []

    result = json.loads((folder / "result.json").read_text())
    plain, ours = result["rows"]
    assert (plain["method"], ours["method"]) == SIDES
    assert ours["outputs_equal_to_vllm_ratio"] == 1.0
    assert {row["promise"] for row in result["verdicts"]} == {"throughput_ratio", "ttft_added_ms", "itl_added_ms"}
    used = ours["cpu_s_per_1000_tokens_by_process"]
    assert {"ingress", "model replica", "engine core", "HAProxy", "Serve's controller", "raylet"} <= set(used)
    assert {"API server", "engine core"} <= set(plain["cpu_s_per_1000_tokens_by_process"])
    assert used["engine core"] > 0
    assert "promised" in (folder / "report.md").read_text()
