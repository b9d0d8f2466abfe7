"""The kernel that lays out a drafter's rows on a GPU, under Triton's interpreter, compared with its reference."""

import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from peagle.engine.drafting.draft_layout import (  # noqa: E402
    DraftCache,
    LaidOut,
    Mask,
    Verified,
    laid_out,
    plan_rows,
)
from peagle.engine.drafting.draft_rows_trials import trial, trials  # noqa: E402

CPU = torch.device("cpu")
DEPTH_MAX = 8
# In a separate process, where the kernel is not interpreted. Compiling needs no GPU.
COMPILE = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from peagle.engine.drafting.draft_rows_kernel import draft_rows

kinds = dict.fromkeys(("positions_ptr", "out_positions_ptr", "slots_ptr"), "*i64")
states = ("states_ptr", "mask_state_ptr", "out_states_ptr")
kinds |= dict.fromkeys(states, "*bf16")
names = draft_rows.arg_names
types = {name: kinds.get(name, "*i32" if name.endswith("_ptr") else "i32") for name in names}
tile = {"ROWS": 16, "WIDTH": 256}
aligned = (*states, "size", "states_stride", "out_stride")
attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in aligned}
for capability in (80, 90, 100):
    source = ASTSource(draft_rows, types | dict.fromkeys(tile, "constexpr"), tile, attributes)
    made = compile(source, target=GPUTarget("cuda", capability, 32))
    assert made.asm["cubin"]
    assert "ld.global.v4.b32" in made.asm["ptx"], "hidden states are loaded 16 bytes at a time"
    assert "st.global.v4.b32" in made.asm["ptx"]
"""


def assert_equal(kernel: ModuleType, plan: object, verified: Verified, mask: Mask, cache: DraftCache) -> None:
    out = kernel.empty(plan, verified)
    kernel.lay_out(plan, torch.from_numpy(plan.packed()), verified, mask, cache, out)
    expected = laid_out(plan, verified, mask, cache)
    for name in LaidOut.__slots__:
        assert torch.equal(getattr(out, name), getattr(expected, name)), name


def test_rejected_rows_stand_last_and_each_request_has_masks_for_its_own_depth(draft_rows_kernel: ModuleType) -> None:
    verified = Verified(
        tokens=torch.tensor([10, 11, 12, 13, 20, 21], dtype=torch.int32),
        positions=torch.tensor([3, 4, 5, 6, 0, 1]),
        states=torch.arange(1.0, 7.0)[:, None],
        new_tokens=torch.tensor([15, 25], dtype=torch.int32),
        rejected=torch.tensor([2, 0], dtype=torch.int32),
        starts=torch.tensor([0, 4, 6], dtype=torch.int32),
    )
    mask = Mask(1, torch.tensor([9.0]))
    cache = DraftCache(torch.tensor([[7, 2, 5, 1], [3, 0, 6, 4]], dtype=torch.int32), block_size=4, context_tokens=5)
    plan = plan_rows(np.array([0, 4, 6], np.int32), np.array([3, 1], np.int32), depth=3)
    rows = laid_out(plan, verified, mask, cache)
    assert rows.ids.tolist() == [11, 15, 1, 1, 0, 0, 21, 25]
    assert rows.positions.tolist() == [3, 4, 5, 6, 0, 0, 0, 1]
    assert rows.slots.tolist() == [31, 8, -1, -1, -1, -1, 12, 13]
    assert rows.states.flatten().tolist() == [1, 2, 9, 9, 0, 0, 5, 6]
    assert rows.to_sample.tolist() == [1, 2, 3, 7, 7, 7]
    assert (plan.rows, plan.starts.tolist(), plan.longest) == (8, [0, 6, 8], 6)
    assert_equal(draft_rows_kernel, plan, verified, mask, cache)


def test_a_request_that_drafts_nothing_keeps_the_drafters_cache_in_step() -> None:
    starts = np.array([0, 3], np.int32)
    plans = [plan_rows(starts, np.array([depth], np.int32), depth=4) for depth in (0, 1)]
    assert [plan.masks.tolist() for plan in plans] == [[0], [0]]
    assert [plan.rows for plan in plans] == [3, 3]


@pytest.mark.parametrize("seed", range(4))
def test_it_equals_its_reference_on_small_batches(seed: int, draft_rows_kernel: ModuleType) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(500):
        dtype = torch.bfloat16 if rng.random() < 0.5 else torch.float32
        batch = trial(rng, DEPTH_MAX, 8, dtype, CPU, int(rng.choice([1, 4, 16])), requests_max=3, prompt_tokens_max=12)
        assert_equal(draft_rows_kernel, *batch)


def test_it_equals_its_reference_on_batches_of_many_programs(draft_rows_kernel: ModuleType) -> None:
    rng = np.random.default_rng(9)
    for size in (8, 256, 300, 513) * 6:
        dtype = torch.bfloat16 if rng.random() < 0.5 else torch.float32
        batch = trial(rng, DEPTH_MAX, size, dtype, CPU, 16, requests_max=12, prompt_tokens_max=90)
        assert_equal(draft_rows_kernel, *batch)


def test_it_compiles_for_gpus_with_wide_loads(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    env = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_batches_of_a_start_have_all_that_occurs() -> None:
    batches = list(trials(7, 4, torch.float32, CPU, 16))
    plans = [plan for plan, *_ in batches]
    assert any((plan.masks == plan.masks[0]).all() and len(plan.masks) > 1 for plan in plans)
    assert any(len(set(plan.masks.tolist())) > 1 for plan in plans)
    assert any(np.diff(verified.starts.numpy()).max() > 8 for _, verified, _, _ in batches)
    assert any(verified.rejected.any() for _, verified, _, _ in batches)
    assert any((laid_out(*batch).slots[~_is_empty(batch)] == -1).any() for batch in batches)


def _is_empty(batch: tuple[object, Verified, Mask, DraftCache]) -> object:
    """Return which rows belong to rejected tokens."""
    plan, verified = batch[:2]
    ends = torch.from_numpy(plan.starts[1:])
    rows, requests = torch.arange(plan.rows), torch.from_numpy(plan.requests).long()
    return rows >= (ends - verified.rejected)[requests]
