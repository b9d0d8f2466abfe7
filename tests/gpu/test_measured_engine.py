"""The process that measures one engine on a GPU, tested on a CPU with a very small shape."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from peagle.router.depth.cost_table import CostTable
from support.engines.gpu_lines import ADAPTIVE, DEPTHS
from support.engines.tiny_shape import TINY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

LOADS = (1, 2)


def measured(name: str, tmp_path: Path) -> dict[str, Any]:
    """Return the process's results for the engine `name`."""
    out, shape = tmp_path / "out.json", tmp_path / "tiny.json"
    shape.write_text(json.dumps(TINY))
    command = [sys.executable, str(Path(__file__).with_name("measured_engine.py")), name, str(out)]
    command += ["--ready", str(tmp_path / "ready"), "--shape", str(shape), "--accelerator", "cpu", "--kv-gib", "0.1"]
    command += ["--passes", "2", "--tokens", "24", "--loads", *map(str, LOADS)]
    log = tmp_path / "log"
    with log.open("w") as written:
        done = subprocess.run(command, input="0\n", text=True, stdout=written, stderr=written, check=False)
    assert done.returncode == 0, log.read_text()[-2000:]
    assert (tmp_path / "ready").exists()
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def test_each_k_and_the_rule_are_measured_at_each_load(tmp_path: Path) -> None:
    found = measured("p-eagle", tmp_path)
    variants = (*DEPTHS, ADAPTIVE)
    assert {(row["load"], row["variant"]) for row in found["rows"]} == {(load, k) for load in LOADS for k in variants}
    # Its time was up when it began, so it ran exactly one pass.
    assert all(len(row["tokens_per_s"]) == 1 and row["tokens_per_s"][0] > 0 for row in found["rows"])
    static = [row for row in found["rows"] if row["variant"] in DEPTHS]
    assert all(row["step_ms"] > 0 for row in static)
    assert all(row["first_step_ratio"] > 0 for row in static if row["load"] == 1)
    assert CostTable.from_plain(found["cost_table"]).depths == DEPTHS
    assert found["compiled"] == 0


def test_an_engine_without_step_sums_is_still_measured(tmp_path: Path) -> None:
    found = measured("none", tmp_path)
    assert {(row["load"], row["variant"]) for row in found["rows"]} == {(load, 0) for load in LOADS}
    assert all(row["tokens_per_s"][0] > 0 and row["step_ms"] is None for row in found["rows"])
    assert (found["cost_table"], found["steps_by_graph"], found["compiled"]) == ([], {}, 0)
