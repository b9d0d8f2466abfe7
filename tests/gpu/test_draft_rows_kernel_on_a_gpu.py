"""The compiled kernel that lays out a drafter's rows equals its reference, and nothing waits for the device."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from peagle.engine.drafting.draft_layout import LaidOut, laid_out  # noqa: E402
from peagle.engine.drafting.draft_rows_trials import trial  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]
DEPTH_MAX, SIZE, BATCHES = 8, 4096, 200


@pytest.fixture
def sync_mode() -> Iterator[None]:
    """Restore the device's mode afterwards."""
    yield
    torch.cuda.set_sync_debug_mode("default")


def batch_of(rng: np.random.Generator, size: int, requests: int = 64) -> tuple[Any, ...]:
    return trial(rng, DEPTH_MAX, size, torch.bfloat16, torch.device("cuda"), 16, requests, 300)


def test_it_equals_its_reference_on_the_device() -> None:
    from peagle.engine.drafting.draft_rows_kernel import empty, lay_out

    rng = np.random.default_rng(3)
    for _ in range(BATCHES):
        plan, *rest = batch_of(rng, int(rng.choice([64, 300, 2880, SIZE])))
        out = empty(plan, rest[0])
        lay_out(plan, torch.from_numpy(plan.packed()).cuda(), *rest, out)
        expected = laid_out(plan, *rest)
        for name in LaidOut.__slots__:
            assert torch.equal(getattr(out, name), getattr(expected, name)), name


def test_one_kernel_is_compiled_whatever_the_numbers_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    from peagle.engine.drafting import draft_rows_kernel

    compiled: list[str] = []
    monkeypatch.setattr(triton.knobs.runtime, "jit_cache_hook", lambda **told: compiled.append(told["repr"]))
    draft_rows_kernel.draft_rows.device_caches.clear()
    rng = np.random.default_rng(4)
    for requests in (1, 2, 16, 64, 64, 64):
        plan, *rest = batch_of(rng, SIZE, requests)
        packed = torch.from_numpy(plan.packed()).cuda()
        draft_rows_kernel.lay_out(plan, packed, *rest, draft_rows_kernel.empty(plan, rest[0]))
    assert len(compiled) == 1, compiled


@pytest.mark.usefixtures("sync_mode")
# PyTorch warns once that this mode is a prototype.
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_nothing_waits_for_the_device() -> None:
    from vllm.utils.torch_utils import async_tensor_h2d

    from peagle.engine.drafting.draft_rows_kernel import empty, lay_out

    plan, *rest = batch_of(np.random.default_rng(5), SIZE)
    lay_out(plan, torch.from_numpy(plan.packed()).cuda(), *rest, empty(plan, rest[0]))
    torch.cuda.set_sync_debug_mode("error")
    lay_out(plan, async_tensor_h2d(plan.packed(), device="cuda"), *rest, empty(plan, rest[0]))
