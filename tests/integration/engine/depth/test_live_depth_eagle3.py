"""Live depth cuts drafts of the autoregressive EAGLE-3 head in the same way."""

from pathlib import Path
from typing import Any

import pytest

from support.engines.engine_runner import embedded, held_out, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# float32: see test_live_depth.py.
ENGINE = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 8}


def test_an_autoregressive_draft_is_cut_the_same_way() -> None:
    peagle = embedded(**ENGINE)
    assert peagle.drafter is not None
    head = {"source": str(Path(peagle.drafter.source).with_name("eagle3")), "method": "eagle3"}
    deployment = peagle.model_copy(update={"drafter": peagle.drafter.model_copy(update=head)})
    with running(deployment) as runner:

        def texts(on_step: Any = None) -> list[tuple[int, ...]]:
            outputs = runner.generate(held_out(16), 4, on_step, max_tokens=24, ignore_eos=True)
            return [tuple(output.token_ids) for output in outputs]

        runner.set_depths(0)
        alone = texts()
        for depth in (3, 7):
            runner.set_depths(depth)
            before = runner.stats()
            assert texts() == alone
            after = runner.stats().since(before)
            assert after.depth_effective == depth
            assert after.accepted > 0
        assert texts(runner.restless(seed=1)) == alone
