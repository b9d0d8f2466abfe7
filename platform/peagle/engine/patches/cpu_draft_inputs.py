"""Lays out what a P-EAGLE drafter passes over, on a CPU: the tokens that were accepted, and the masks it is asked for.

vLLM lays out every verified row and marks the rejected ones, so that a GPU never waits for their number, and on a CPU
imitates that kernel. Here the numbers are at hand: at K = 7 and an acceptance length of 4, four of fourteen rows would
be for nothing. What is drafted stays the same.

A step that asks for fewer drafts has fewer masks: a row costs a CPU as much as any other, and a mask attends to nothing
behind it, so the drafts that are left stay the same.
"""

import itertools
from typing import Any

import torch

from peagle.engine.drafting.cpu_draft_rows import Cache, Verified, lay_out


def lays_out(proposer: Any) -> bool:
    """Whether the rows of this drafter are laid out here."""
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
    """What vLLM's `set_inputs_first_pass` does, without rows of rejected tokens, for K of `num_speculative_tokens`.

    Returns:
        How many rows there are; those to draft from, int32 [requests * K]; where all of them are, for attention.
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
        _seq_lens_cpu=None,  # a copy of the old ones, made anew where it is asked for
    )
    return count, torch.tensor(rows.to_sample, dtype=torch.int32), metadata
