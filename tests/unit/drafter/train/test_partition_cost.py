"""Measured savings of sequence partition."""

import json
import os
import subprocess
import sys

import pytest

from support.paths import EMBEDDED, SUPPORT

SCRIPT = SUPPORT / "engines" / "partition_cost.py"
TARGET = EMBEDDED / "target"
ROW_TOKENS = 2048
TRIES = 4


def costs(*partitions: int) -> list[dict[str, float]]:
    done = subprocess.run(
        [sys.executable, SCRIPT, TARGET, str(ROW_TOKENS), *map(str, partitions)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_eight_chunks_take_a_third_of_the_memory_at_most_and_little_more_time() -> None:
    whole, parts = costs(1, 8)
    assert parts["loss"] == pytest.approx(whole["loss"], rel=1e-3)
    assert parts["peak_gib"] <= whole["peak_gib"] / 3
    whole_s, parts_s = [whole["cpu_s"]], [parts["cpu_s"]]
    while min(parts_s) > 1.3 * min(whole_s) and len(parts_s) < TRIES:  # the machine's speed may have changed meanwhile
        whole, parts = costs(1, 8)
        whole_s.append(whole["cpu_s"])
        parts_s.append(parts["cpu_s"])
    assert min(parts_s) <= 1.3 * min(whole_s)
