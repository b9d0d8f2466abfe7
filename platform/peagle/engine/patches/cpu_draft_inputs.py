"""Lays out a P-EAGLE drafter's rows on a CPU: the accepted tokens and the masks to draft from.

vLLM lays out every verified row and marks the rejected ones, so that a GPU never waits for their number, and on a CPU
emulates that kernel. Here the numbers are known: at K = 7 and an acceptance length of 4, four of fourteen rows would be
wasted. The drafts stay the same.

A step that asks for fewer drafts has fewer masks, since on a CPU each row costs the same. A mask attends to nothing
after it, so the remaining drafts stay the same.
"""

import itertools
from typing import Any

import torch

from peagle.engine.drafting.cpu_draft_rows import Cache, Verified, lay_out


def lays_out(proposer: Any) -> bool:
    """Return whether this module lays out the rows of this drafter."""
    return bool(
        proposer.device.type == "cpu"
        and proposer.method == "eagle3"
        and proposer.parallel_drafting
        and proposer.needs_extra_input_slots
        and not proposer.use_heterogeneous_vocab
        and not proposer.vllm_config.model_config.uses_mrope
    )


def set_inputs(
    proposer: Any,
    target_token_ids: torch.Tensor,
    next_token_ids: torch.Tensor,
    target_positions: torch.Tensor,
    target_hidden_states: torch.Tensor,
    token_indices_to_sample: torch.Tensor | None,
    cad: Any,
    num_rejected_tokens_gpu: torch.Tensor | None,
) -> tuple[int, torch.Tensor, Any]:
    """Replace vLLM's `set_inputs_first_pass`, without rejected rows, for K = `num_speculative_tokens`.

    Returns:
        The number of rows; the rows to draft from, int32 [requests * K]; attention metadata of all rows.
    """
    masks = proposer.num_speculative_tokens - 1
    rejected = [0] * cad.num_reqs if num_rejected_tokens_gpu is None else num_rejected_tokens_gpu.tolist()
    rows = lay_out(
        Verified(cad.query_start_loc_cpu.tolist(), rejected, target_token_ids.tolist(), target_positions.tolist()),
        next_token_ids.tolist(),
        [proposer.parallel_drafting_token_id] * masks,
        Cache(cad.block_table_tensor, proposer.block_size, proposer.max_model_len),
    )
    if ngrams := getattr(proposer, "peagle_ngrams", None):
        ngrams.read(proposer.peagle_runner.input_batch, rows.written)
    count = len(rows.ids)
    proposer.input_ids[:count] = torch.tensor(rows.ids)
    proposer.positions[:count] = torch.tensor(rows.positions)
    masked_states = proposer.parallel_drafting_hidden_state_tensor.expand(masks, -1)
    states = [part for first, end in rows.kept for part in (target_hidden_states[first:end], masked_states)]
    torch.cat(states, out=proposer.hidden_states[:count])
    query_starts = torch.tensor(rows.starts, dtype=torch.int32)
    metadata = cad.replace(
        query_start_loc=query_starts,
        query_start_loc_cpu=query_starts,
        seq_lens=cad.seq_lens + torch.tensor([masks - wrong for wrong in rejected], dtype=torch.int32),
        num_actual_tokens=count,
        max_query_len=max(end - start for start, end in itertools.pairwise(rows.starts)),
        max_seq_len=cad.max_seq_len + masks,
        slot_mapping=torch.tensor(rows.slots),
        _seq_lens_cpu=None,  # a copy of the old lengths, recomputed on demand
    )
    return count, torch.tensor(rows.to_sample, dtype=torch.int32), metadata
