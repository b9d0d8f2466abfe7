"""Processes and devices of training: which process takes which row, what is refused, and where tensors are created."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_heads import VOCABULARY, rows, target_of
from test_plan_file import GIB, PLAN, SHAPE, text_of
from transformers import AutoConfig

from peagle.drafter.evaluate import drafts_of
from peagle.drafter.train import heads
from peagle.drafter.train.compute import ALONE, CPU, Compute, device_of, joined
from peagle.drafter.train.head_plan import HEAD_PLANS, HeadPlan
from peagle.drafter.train.heads import Row, TargetTap, make_head, sampling_seed, train_head
from peagle.drafter.train.readiness import check_training
from peagle.errors import ConfigError
from peagle.host.machine_limits import available_memory_bytes

SMALL_PLAN = replace(PLAN, layers=2, trained_depth=3, tapped_layers=(1, 2, 3), steps=4, generated_ratio=1.0)
CORPUS = np.full(5000, 9, np.int32)


@given(st.integers(1, 9), st.integers(0, 20))
def test_every_row_belongs_to_one_process_and_keeps_its_index(processes: int, count: int) -> None:
    taken = [each for rank in range(processes) for each in Compute(CPU, rank, processes).share(range(count))]
    assert sorted(taken) == list(enumerate(range(count)))


def test_each_row_of_each_step_has_a_seed_of_its_own() -> None:
    plans = [replace(PLAN, seed=seed) for seed in (3, 4)]
    seeds = {sampling_seed(plan, step, row) for plan in plans for step in range(30) for row in range(30)}
    assert len(seeds) == 2 * 30 * 30
    assert sampling_seed(PLAN, 7, 2) == sampling_seed(replace(PLAN, steps=1, partitions=4), 7, 2)


def refusal(plan: HeadPlan, processes: int, memory_bytes: int = 64 * GIB) -> str:
    try:
        check_training(plan, SHAPE, text_of(), CORPUS, 1, memory_bytes, processes)
    except ConfigError as error:
        return str(error)
    return ""


def test_a_step_with_fewer_rows_than_processes_is_refused_with_the_fix() -> None:
    assert not refusal(PLAN, 4)  # 832 tokens: four crops of 208, and three whole rows of 256
    found = refusal(PLAN, 5)
    assert "training.tokens_per_step = 832: with rows of 208 tokens a step has 4, too few for 5 processes" in found
    assert "Write 1040 or more, or start fewer processes" in found
    assert not refusal(replace(PLAN, tokens_per_step=1040), 5)
    assert "Write 1024 or more" in refusal(replace(PLAN, whole_row_every=1), 4)
    assert not refusal(replace(PLAN, tokens_per_step=1), 1)


def test_processes_of_a_machine_share_its_memory() -> None:
    four = Compute(CPU, 0, 8, local_processes=4).memory_bytes
    assert four == pytest.approx(available_memory_bytes() / 4, rel=0.1)
    assert "are available for each process" in refusal(PLAN, 2, GIB // 8)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_is_refused() -> None:
    assert device_of("auto", "training.device") == device_of("cpu", "training.device") == CPU
    with (
        pytest.raises(ConfigError, match=r"training\.device = 'cuda': PyTorch sees no GPU .*Write cpu or auto"),
        joined("cuda", "training.device"),
    ):
        pass


def test_one_process_joins_none() -> None:
    with joined("cpu", "training.device") as compute:
        assert compute == ALONE
        assert not torch.distributed.is_initialized()


@pytest.mark.parametrize(("method", "partitions"), [("p-eagle", 1), ("p-eagle", 2), ("eagle3", 1)])
def test_every_tensor_is_made_where_its_row_lies(tmp_path: Path, method: str, partitions: int) -> None:
    target = target_of("llama", tmp_path)
    plan = replace(SMALL_PLAN, method=method, partitions=partitions)
    head = make_head(target, AutoConfig.from_pretrained(target), VOCABULARY - 1, plan, (1, 2, 3))
    tap = TargetTap(target, (1, 2, 3))
    with torch.device("meta"):  # a tensor without an explicit device would be created there, and be unusable
        batch = tap(Row(rows().tokens[0], 8))
        measures = heads.backward(head, batch, plan, 1)
        drafts = drafts_of(head, batch, 3)
    assert measures["loss"] > 0
    assert drafts.shape == (23, 3)


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["p-eagle", "eagle3"])
def test_a_gpu_learns_what_the_cpu_does(tmp_path: Path, method: str) -> None:
    target, text = target_of("llama", tmp_path / "target"), rows()
    # Nearly all positions are sampled, because each kind of device samples differently.
    plan = replace(SMALL_PLAN, method=method, layers=HEAD_PLANS[method].layers, depth_ratio=1.0, tokens_per_step=96)
    losses: dict[str, list[float]] = {}
    for device in ("cpu", "cuda"):
        with joined(device, "training.device") as compute:
            seen = losses.setdefault(compute.device.type, [])
            out = tmp_path / device

            def report(progress: heads.Progress, to: list[float] = seen) -> None:
                to.append(progress.loss)

            train_head(target, text, np.zeros(0, np.int32), VOCABULARY - 1, out, plan, report, compute=compute)
    assert losses["cuda"] == pytest.approx(losses["cpu"], rel=3e-2)  # in bfloat16
