"""Ranks of one model lay out the same rows: two processes, in one of which the kernel fails at its second run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("vllm")
pytest.importorskip("triton")

RANK = """
import sys
from types import SimpleNamespace

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import init_distributed_environment, initialize_model_parallel

from peagle.engine.patches.gpu_draft_inputs import agrees

rank, met_at = int(sys.argv[1]), sys.argv[2]
with set_current_vllm_config(VllmConfig()):
    init_distributed_environment(2, rank, f"file://{met_at}", rank, "gloo")
    initialize_model_parallel(2)
proposer = SimpleNamespace(
    vllm_config=SimpleNamespace(parallel_config=SimpleNamespace(tensor_parallel_size=2)),
    extra_slots_per_request=3,
    hidden_states=torch.zeros(1, 16),
    device=torch.device("cpu"),
    block_size=16,
)
print("at first:", agrees(proposer))
if rank == 1:
    proposer.device = torch.device("meta")  # which computes nothing
print("then:", agrees(proposer))
"""


def test_all_ranks_use_the_kernel_or_none_does(tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path / "met")],
            env={**os.environ, "TRITON_INTERPRET": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        said, _ = rank.communicate(timeout=240)
        assert "at first: True" in said
        assert "then: False" in said
        assert said.count("vLLM's own layout is used instead") == 1
