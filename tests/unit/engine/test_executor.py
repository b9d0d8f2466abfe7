"""On which cores the threads of an engine's process run."""

import json
import os
import subprocess
import sys

import pytest

# In a separate process, because it changes its affinity and keeps its threads.
PROGRAM = """
import json, os, sys, threading
from pathlib import Path
import torch.distributed
from peagle.engine.executor import free_group_threads

cores = json.loads(sys.argv[1])
os.sched_setaffinity(0, cores[:1])
torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
other = threading.Thread(target=threading.Event().wait, daemon=True)
other.start()

def where():
    threads = {thread.name: (thread / "comm").read_text().strip() for thread in Path("/proc/self/task").iterdir()}
    groups = [int(thread) for thread, name in threads.items() if "gloo" in name]
    return {
        "groups": [sorted(os.sched_getaffinity(thread)) for thread in groups],
        "model": [sorted(os.sched_getaffinity(thread)) for thread in (0, other.native_id)],
    }

before = where()
free_group_threads(cores)
print(json.dumps([before, where()]))
"""


def test_threads_of_process_groups_leave_the_models_cores_and_no_others_do() -> None:
    cores = _all_cores()
    if len(cores) < 2:
        pytest.skip("needs a second core")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(cores)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    assert before["groups"], "gloo has threads"
    assert before["groups"] == [cores[:1]] * len(before["groups"])
    assert after["groups"] == [cores] * len(before["groups"])
    assert after["model"] == [cores[:1]] * 2


def _all_cores() -> list[int]:
    """Return the cores that this process may use, which may be more than pytest's workers get."""
    own = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        return sorted(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, own)
