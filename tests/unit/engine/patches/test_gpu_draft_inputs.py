"""The GPU drafter's inputs, compared with vLLM's own; the kernel runs under Triton's interpreter."""

from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
vllm = pytest.importorskip("vllm")

from peagle.engine.drafting.draft_rows_trials import trial  # noqa: E402
from peagle.engine.patches import gpu_draft_inputs  # noqa: E402

DEPTH_MAX, SIZE, BLOCK = 7, 16, 16
IDS = [f"request-{number}" for number in range(8)]


class Batch:
    """One step's verified rows, as vLLM passes them to its drafter, and a drafter to receive them."""

    def __init__(self, rng: np.random.Generator) -> None:
        # Every request reaches the K that vLLM lays out, and some batches contain prompts.
        self.plan, self.verified, self.mask, self.cache = trial(
            rng, DEPTH_MAX, SIZE, torch.float32, torch.device("cpu"), BLOCK, len(IDS), 30
        )
        self.requests = len(self.plan.masks)

    def proposer(self, depth: int, own: dict[str, int] | None = None) -> Any:
        from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

        proposer = object.__new__(SpecDecodeBaseProposer)
        rows = len(self.verified.tokens) + self.requests * DEPTH_MAX
        vars(proposer).update(
            device=torch.device("cpu"),
            method="eagle3",
            parallel_drafting=True,
            pass_hidden_states_to_model=True,
            needs_extra_input_slots=True,
            use_heterogeneous_vocab=False,
            uses_xdrope_dim=0,
            vllm_config=SimpleNamespace(
                model_config=SimpleNamespace(uses_mrope=False), parallel_config=SimpleNamespace(tensor_parallel_size=1)
            ),
            num_speculative_tokens=depth,
            extra_slots_per_request=DEPTH_MAX,
            net_num_new_slots_per_request=DEPTH_MAX - 1,
            parallel_drafting_token_id=self.mask.token,
            parallel_drafting_hidden_state_tensor=self.mask.state,
            block_size=self.cache.block_size,
            max_model_len=self.cache.context_tokens,
            arange=torch.arange(rows + 1, dtype=torch.int32),
            input_ids=torch.full((rows,), -7, dtype=torch.int32),
            positions=torch.full((rows,), -7),
            hidden_states=torch.full((rows, SIZE), -7.0),
            is_rejected_token_mask=torch.zeros(rows, dtype=torch.bool),
            is_masked_token_mask=torch.zeros(rows, dtype=torch.bool),
            peagle_runner=SimpleNamespace(
                peagle_own_depths=own or {}, input_batch=SimpleNamespace(req_ids=IDS), peagle_rows=0
            ),
        )
        return proposer

    def inputs(self) -> dict[str, Any]:
        from vllm.v1.attention.backend import CommonAttentionMetadata

        lengths = self.verified.starts.diff()
        seq_lens = (self.verified.positions[self.verified.starts[1:].long() - 1] + 1).int()
        cad = CommonAttentionMetadata(
            query_start_loc=self.verified.starts,
            query_start_loc_cpu=self.verified.starts.clone(),
            seq_lens=seq_lens,
            num_reqs=self.requests,
            num_actual_tokens=len(self.verified.tokens),
            max_query_len=int(lengths.max()),
            max_seq_len=int(seq_lens.max()),
            block_table_tensor=self.cache.blocks,
            slot_mapping=torch.zeros(len(self.verified.tokens), dtype=torch.int64),
            seq_lens_cpu_upper_bound=seq_lens.clone(),
        )
        return {
            "target_token_ids": self.verified.tokens,
            "next_token_ids": self.verified.new_tokens,
            "target_positions": self.verified.positions,
            "target_hidden_states": self.verified.states,
            "token_indices_to_sample": None,
            "cad": cad,
            "num_rejected_tokens_gpu": self.verified.rejected,
        }


@pytest.fixture
def upstream(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return vLLM's own layout, with the CPU stand-in of its kernel."""
    from vllm.utils import cpu_triton_utils
    from vllm.v1.spec_decode import llm_base_proposer

    kernel = "copy_and_expand_eagle_inputs_kernel"
    monkeypatch.setattr(llm_base_proposer, kernel, getattr(cpu_triton_utils, kernel))
    method = llm_base_proposer.SpecDecodeBaseProposer.set_inputs_first_pass
    return getattr(method, "__wrapped__", method)


@pytest.mark.usefixtures("draft_rows_kernel")
@pytest.mark.parametrize("seed", range(40))
def test_at_the_largest_depth_it_is_what_vllm_gives(seed: int, upstream: Any) -> None:
    batch = Batch(np.random.default_rng(seed))
    theirs, ours = batch.proposer(DEPTH_MAX), batch.proposer(DEPTH_MAX)
    expected_rows, expected_samples, expected = upstream(theirs, **batch.inputs())
    rows, samples, metadata = gpu_draft_inputs.set_inputs(ours, **batch.inputs())
    assert rows == expected_rows
    assert torch.equal(samples, expected_samples)
    used = ~theirs.is_rejected_token_mask[:rows]
    for name in ("input_ids", "positions", "hidden_states"):
        assert torch.equal(getattr(ours, name)[:rows][used], getattr(theirs, name)[:rows][used]), name
        assert (getattr(ours, name)[rows:] == -7).all(), f"{name} beyond the rows"
    assert torch.equal(metadata.slot_mapping, expected.slot_mapping)
    for name in ("query_start_loc", "query_start_loc_cpu", "seq_lens"):
        assert torch.equal(getattr(metadata, name), getattr(expected, name)), name
    for name in ("num_reqs", "num_actual_tokens", "max_query_len", "max_seq_len"):
        assert getattr(metadata, name) == getattr(expected, name), name
    assert torch.equal(metadata.seq_lens_cpu_upper_bound, metadata.seq_lens)


@pytest.mark.usefixtures("draft_rows_kernel")
@pytest.mark.parametrize("seed", range(40))
def test_with_a_depth_of_its_own_each_request_has_the_first_of_those_rows(seed: int, upstream: Any) -> None:
    rng = np.random.default_rng(seed)
    batch, depth = Batch(rng), int(rng.integers(1, DEPTH_MAX + 1))
    own = {IDS[at]: int(rng.integers(0, DEPTH_MAX + 2)) for at in range(batch.requests) if rng.random() < 0.5}
    theirs, ours = batch.proposer(DEPTH_MAX), batch.proposer(depth, own)
    _, all_samples, whole = upstream(theirs, **batch.inputs())
    rows, samples, metadata = gpu_draft_inputs.set_inputs(ours, **batch.inputs())
    starts, whole_starts = metadata.query_start_loc.tolist(), whole.query_start_loc.tolist()
    kept = (batch.verified.starts.diff() - batch.verified.rejected).tolist()
    assert (starts[-1], metadata.num_actual_tokens) == (rows, rows)
    assert metadata.max_query_len == max(metadata.query_start_loc.diff())
    assert metadata.max_seq_len >= metadata.seq_lens.max()
    for at in range(batch.requests):
        drafts = max(1, min(depth, own.get(IDS[at], depth)))
        count = kept[at] + drafts - 1
        assert starts[at + 1] - starts[at] == count + batch.verified.rejected[at]
        mine, its = slice(starts[at], starts[at] + count), slice(whole_starts[at], whole_starts[at] + count)
        for name in ("input_ids", "positions", "hidden_states"):
            assert torch.equal(getattr(ours, name)[mine], getattr(theirs, name)[its]), name
        assert torch.equal(metadata.slot_mapping[mine], whole.slot_mapping[its])
        assert (metadata.slot_mapping[mine.stop : starts[at + 1]] == -1).all()
        assert metadata.seq_lens[at] - whole.seq_lens[at] == drafts - DEPTH_MAX
        sampled = samples.view(-1, depth)[at] - starts[at]
        expected = all_samples.view(-1, DEPTH_MAX)[at] - whole_starts[at]
        assert torch.equal(sampled[:drafts], expected[:drafts])
        assert (sampled[drafts:] == sampled[drafts - 1]).all()


@pytest.mark.usefixtures("draft_rows_kernel")
def test_a_step_without_drafts_to_verify_has_no_rejected_rows() -> None:
    batch = Batch(np.random.default_rng(1))
    none = replace(batch.verified, rejected=torch.zeros_like(batch.verified.rejected))
    told, untold = batch.proposer(3), batch.proposer(3)
    for proposer, rejected in ((told, none.rejected), (untold, None)):
        gpu_draft_inputs.set_inputs(proposer, **batch.inputs() | {"num_rejected_tokens_gpu": rejected})
    assert torch.equal(told.input_ids, untold.input_ids)
    assert torch.equal(told.hidden_states, untold.hidden_states)


def test_a_kernel_that_equals_its_reference_is_used(
    draft_rows_kernel: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    assert draft_rows_kernel
    assert gpu_draft_inputs.agrees(Batch(np.random.default_rng(1)).proposer(DEPTH_MAX))
    assert caplog.messages == []


@pytest.mark.parametrize("fails", [False, True], ids=["differs", "does not run"])
def test_a_kernel_that_differs_leaves_vllms_own_layout_with_one_warning(
    fails: bool,
    draft_rows_kernel: ModuleType,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lay_out = draft_rows_kernel.lay_out

    def wrong(*inputs: Any) -> None:
        if fails:
            raise RuntimeError("no such instruction")
        lay_out(*inputs)
        inputs[-1].slots[-1] += 1

    monkeypatch.setattr(draft_rows_kernel, "lay_out", wrong)
    assert not gpu_draft_inputs.agrees(Batch(np.random.default_rng(1)).proposer(DEPTH_MAX))
    (said,) = caplog.messages
    assert ("no such instruction" if fails else "other slots than its reference") in said
    assert "every step drafts 7 tokens" in said


def test_the_kernel_is_used_on_a_gpu_only() -> None:
    proposer = Batch(np.random.default_rng(1)).proposer(3)
    assert not gpu_draft_inputs.is_eligible(proposer)
    proposer.device = torch.device("cuda")
    assert gpu_draft_inputs.is_eligible(proposer)
    proposer.parallel_drafting = False
    assert not gpu_draft_inputs.is_eligible(proposer)
