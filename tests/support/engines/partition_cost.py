"""Measures the cost of one row of a P-EAGLE head, whole or partitioned: prints a JSON object per partition count.

Each is measured in a process of its own, since a peak cannot be taken back; they are forks of one that has imported
what takes long.

python tests/support/engines/partition_cost.py TARGET LENGTH PARTITIONS...
"""

import json
import os
import re
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import torch
from transformers import AutoConfig

from peagle.drafter.train import heads
from peagle.drafter.train.head_plan import HEAD_PLANS


def peak_bytes() -> int:
    """Return this process's peak memory. `ru_maxrss` is not suitable: it starts at the parent's peak."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found, "/proc/self/status has no VmHWM"
    return int(found[1]) * 1024


def cost(target: Path, partitions: int, length: int) -> dict[str, float]:
    """Return the peak memory above the level before the row, and the time of its forward and backward passes."""
    torch.manual_seed(1)
    # Without a Markov head, speculators' own pass processes the whole row.
    plan = replace(HEAD_PLANS["p-eagle"], partitions=partitions, markov_rank=0)
    config = AutoConfig.from_pretrained(target)
    head = heads.make_head(target, config, 1, plan, heads.tapped_layers_of(config.num_hidden_layers))
    batch = {
        "input_ids": torch.randint(2, config.vocab_size, (1, length)),
        "hidden_states": torch.randn(1, length, 3 * config.hidden_size),
        "verifier_last_hidden_states": torch.randn(1, length, config.hidden_size),
        "document_ids": torch.zeros(1, length, dtype=torch.long),
        "position_ids": torch.arange(1, length + 1)[None],
        "loss_mask": torch.ones(1, length),
    }
    before = psutil.Process().memory_info().rss
    wall, cpu = time.monotonic(), time.process_time()
    measures = heads.backward(head, batch, plan, 1)
    return {
        "partitions": partitions,
        "length": length,
        "loss": measures["loss"],
        "fc_gradient_norm": float(head.fc.weight.grad.norm()),
        "peak_gib": (peak_bytes() - before) / 2**30,
        "wall_s": time.monotonic() - wall,
        "cpu_s": time.process_time() - cpu,
    }


if __name__ == "__main__":
    torch.set_num_threads(1)
    for asked in sys.argv[3:]:
        if (child := os.fork()) == 0:
            print(json.dumps(cost(Path(sys.argv[1]), int(asked), int(sys.argv[2]))), flush=True)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            sys.exit(f"it could not be measured with {asked} partitions")
