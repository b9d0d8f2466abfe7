"""A P-EAGLE drafter's rows on a CPU, compared with vLLM's own layout without its rejected rows."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from peagle.engine.drafting.ngrams import BatchNgrams, NgramIndex

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

DRAFTED = 7
MASK_TOKEN = 1
HIDDEN = 16
BLOCK = 16
CONTEXT = 256
BUFFER = 512


@pytest.fixture(scope="module", autouse=True)
def vllm_with_cpu_kernels() -> None:
    """Do once what a worker and the CPU model runner do at start."""
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils
    from vllm.v1.spec_decode import llm_base_proposer

    from peagle.engine.patches.patch_table import install_patches
    from peagle.upstream import Process

    install_patches(Process.WORKER)
    current_platform.import_kernels()
    llm_base_proposer.copy_and_expand_eagle_inputs_kernel = cpu_triton_utils.copy_and_expand_eagle_inputs_kernel


def proposer(method: str = "eagle3", masks: bool = True, depth: int = DRAFTED) -> Any:
    """Return vLLM's proposer without a model: only the buffers for its rows. A step asks it for `depth` drafts."""
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    made = object.__new__(SpecDecodeBaseProposer)
    made.device, made.method, made.parallel_drafting = torch.device("cpu"), method, masks
    made.use_heterogeneous_vocab, made.pass_hidden_states_to_model = False, True
    made.extra_slots_per_request = DRAFTED if masks else 1
    made.num_speculative_tokens = depth
    made.net_num_new_slots_per_request = made.extra_slots_per_request - 1
    made.needs_extra_input_slots = masks
    made.parallel_drafting_token_id = MASK_TOKEN
    made.parallel_drafting_hidden_state_tensor = torch.full((HIDDEN,), -1.0, dtype=torch.bfloat16)
    made.block_size, made.max_model_len = BLOCK, CONTEXT
    made.uses_mrope, made.uses_xdrope_dim, made.draft_uses_xdrope_dim = False, 0, 0
    made.arange = torch.arange(BUFFER, dtype=torch.int32)
    made.input_ids = torch.full((BUFFER,), -7, dtype=torch.int32)
    made.positions = torch.full((BUFFER,), -7, dtype=torch.int64)
    made.hidden_states = torch.full((BUFFER, HIDDEN), -7.0, dtype=torch.bfloat16)
    made.is_rejected_token_mask = torch.zeros(BUFFER, dtype=torch.bool)
    made.is_masked_token_mask = torch.zeros(BUFFER, dtype=torch.bool)
    made.peagle_runner = SimpleNamespace()
    made.vllm_config = type("Config", (), {"model_config": type("Model", (), {"uses_mrope": False})})
    return made


def batch(lengths: Sequence[int], computed: Sequence[int], rejected: Sequence[int] | None) -> dict[str, Any]:
    """Return vLLM's inputs: `lengths` verified rows of requests with `computed` tokens, `rejected` of them wrong."""
    from vllm.v1.attention.backend import CommonAttentionMetadata

    draw = np.random.default_rng(len(lengths))
    starts = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32)
    total = int(starts[-1])
    seq_lens = torch.tensor([length + first for length, first in zip(lengths, computed, strict=True)]).int()
    blocks = torch.from_numpy(draw.permutation(len(lengths) * CONTEXT // BLOCK).reshape(len(lengths), -1)).int()
    positions = np.concatenate([first + np.arange(n) for n, first in zip(lengths, computed, strict=True)])
    return {
        "target_token_ids": torch.from_numpy(draw.integers(2, 999, total)).int(),
        "next_token_ids": torch.from_numpy(draw.integers(2, 999, len(lengths))).int(),
        "target_positions": torch.from_numpy(positions),
        "target_hidden_states": torch.from_numpy(draw.normal(size=(total, HIDDEN))).bfloat16(),
        "token_indices_to_sample": None,
        "cad": CommonAttentionMetadata(
            query_start_loc=starts,
            query_start_loc_cpu=starts.clone(),
            seq_lens=seq_lens,
            num_reqs=len(lengths),
            num_actual_tokens=total,
            max_query_len=max(lengths),
            max_seq_len=int(seq_lens.max()),
            block_table_tensor=blocks,
            slot_mapping=torch.zeros(total, dtype=torch.int64),
        ),
        "num_rejected_tokens_gpu": None if rejected is None else torch.tensor(rejected, dtype=torch.int32),
    }


@pytest.mark.parametrize(
    ("lengths", "computed", "rejected"),
    [
        ([8], [100], [0]),
        ([8], [100], [7]),
        ([8], [100], [3]),
        ([1], [100], None),
        ([40], [0], None),
        ([8, 8, 8], [3, 60, 17], [7, 0, 4]),
        ([8, 1, 30, 4, 8], [33, 64, 0, 15, 200], [2, 0, 0, 3, 5]),  # one of them prefills
        ([8, 8], [CONTEXT - 8, CONTEXT - 11], [0, 2]),  # masks beyond the context
        ([8, 8], [CONTEXT - 8, 16], [5, 0]),
    ],
)
def test_rows_are_vllms_without_the_rejected_ones(
    lengths: Sequence[int], computed: Sequence[int], rejected: Sequence[int] | None
) -> None:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    theirs, ours = proposer(), proposer()
    upstream: Any = SpecDecodeBaseProposer.set_inputs_first_pass
    padded, padded_samples, padded_metadata = upstream.__wrapped__(theirs, **batch(lengths, computed, rejected))
    count, samples, metadata = ours.set_inputs_first_pass(**batch(lengths, computed, rejected))
    assert ours.peagle_runner.peagle_rows == (count, 0)

    kept = ~theirs.is_rejected_token_mask[:padded]
    dropped = torch.tensor(rejected or [0] * len(lengths), dtype=torch.int32)
    assert count == int(kept.sum()) == padded - int(dropped.sum()) == metadata.num_actual_tokens
    for name in ("input_ids", "positions", "hidden_states"):
        assert torch.equal(getattr(ours, name)[:count], getattr(theirs, name)[:padded][kept]), name
    assert torch.equal(metadata.slot_mapping, padded_metadata.slot_mapping[kept])

    # The index of each row among those kept: the same rows are sampled.
    numbers = kept.cumsum(0) - 1
    assert samples.dtype == torch.int32
    assert samples.tolist() == numbers[padded_samples.long()].tolist()

    assert metadata.query_start_loc.diff().tolist() == (padded_metadata.query_start_loc.diff() - dropped).tolist()
    assert torch.equal(metadata.query_start_loc, metadata.query_start_loc_cpu)
    assert metadata.query_start_loc.dtype == padded_metadata.query_start_loc.dtype
    assert torch.equal(metadata.seq_lens, padded_metadata.seq_lens - dropped)
    assert metadata.max_query_len == int(metadata.query_start_loc.diff().max())
    assert metadata.max_seq_len == padded_metadata.max_seq_len
    # Earlier computed tokens do not change.
    assert torch.equal(metadata.compute_num_computed_tokens(), padded_metadata.compute_num_computed_tokens())


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("rejected", [[2, 0, 5], [0, 0, 0]])
def test_a_step_that_asks_for_fewer_drafts_has_fewer_masks_and_else_the_same_rows(
    depth: int, rejected: Sequence[int]
) -> None:
    lengths, computed = [8, 3, 8], [33, 64, 200]
    whole, fewer = proposer(), proposer(depth=depth)
    count, samples, metadata = whole.set_inputs_first_pass(**batch(lengths, computed, rejected))
    fewer_count, fewer_samples, fewer_metadata = fewer.set_inputs_first_pass(**batch(lengths, computed, rejected))
    assert count - fewer_count == len(lengths) * (DRAFTED - depth)
    starts, fewer_starts = metadata.query_start_loc.tolist(), fewer_metadata.query_start_loc.tolist()
    kept = [
        start + row
        for start, first, end in zip(starts, fewer_starts, fewer_starts[1:], strict=False)
        for row in range(end - first)
    ]
    for name in ("input_ids", "positions", "hidden_states"):
        assert torch.equal(getattr(fewer, name)[:fewer_count], getattr(whole, name)[:count][kept]), name
    assert torch.equal(fewer_metadata.slot_mapping, metadata.slot_mapping[kept])
    numbers = {row: number for number, row in enumerate(kept)}
    sampled = samples.view(len(lengths), DRAFTED)[:, :depth].flatten().tolist()
    assert fewer_samples.tolist() == [numbers[row] for row in sampled]
    assert torch.equal(fewer_metadata.seq_lens, metadata.seq_lens - (DRAFTED - depth))
    assert fewer_metadata.max_seq_len == metadata.max_seq_len - (DRAFTED - depth)
    assert fewer_metadata.max_query_len == int(fewer_metadata.query_start_loc.diff().max())


def test_vllms_own_layout_is_read_with_its_configured_k() -> None:
    """vLLM lays out masks for the configured K, whatever K is asked for."""
    made = proposer(depth=3)
    made.vllm_config.model_config.uses_mrope = True  # a kind of target for which vLLM's layout is kept
    count, samples, _ = made.set_inputs_first_pass(**batch([8, 3], [20, 40], [2, 0]))
    assert made.peagle_runner.peagle_rows == (count, count)
    assert made.num_speculative_tokens == DRAFTED
    assert len(samples) == 2 * made.num_speculative_tokens


def test_other_drafters_keep_vllms_layout() -> None:
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    upstream: Any = SpecDecodeBaseProposer.set_inputs_first_pass
    autoregressive, same = proposer(masks=False), proposer(masks=False)
    count, samples, _ = autoregressive.set_inputs_first_pass(**batch([8, 3], [20, 40], [2, 0]))
    expected, expected_samples, _ = upstream.__wrapped__(same, **batch([8, 3], [20, 40], [2, 0]))
    assert count == expected == 11
    assert torch.equal(samples, expected_samples)
    assert torch.equal(autoregressive.input_ids, same.input_ids)


def test_ngrams_cover_the_text_written_so_far() -> None:
    """Over the chunks of a prompt, after rejected drafts, and after steps without drafts."""
    text = np.random.default_rng(5).integers(2, 9, 60).tolist()
    prompt = text[:40]
    ours = proposer()
    ours.peagle_ngrams = BatchNgrams()

    def step(first: int, tokens: list[int], new: int, *, wrong: int = 0) -> None:
        known = max(len(prompt), first + 1)
        written = np.full((1, CONTEXT), -1)
        written[0, :known] = text[:known]
        lengths = np.array([known])
        ours.peagle_runner = SimpleNamespace(
            input_batch=SimpleNamespace(req_ids=["one"], token_ids_cpu=written, num_tokens_no_spec=lengths)
        )
        rows = batch([len(tokens)], [first], [wrong])
        rows["target_token_ids"], rows["next_token_ids"] = torch.tensor(tokens).int(), torch.tensor([new]).int()
        ours.set_inputs_first_pass(**rows)

    step(0, prompt[:16], prompt[-1])  # vLLM's next token after a chunk that is not the last
    step(16, prompt[16:], text[40])
    step(40, [*text[40:44], 99, 99, 99, 99], text[44], wrong=4)
    step(47, text[47:48], text[48])
    (index,) = ours.peagle_ngrams.of_each()
    whole = NgramIndex()
    whole.read(text[:49])
    assert index.length == whole.length == 49
    for end in range(3, 49):
        assert index.followers(text[end - 3 : end]) == whole.followers(text[end - 3 : end])
