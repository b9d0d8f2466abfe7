"""Lays out a P-EAGLE drafter's rows on a GPU, with masks for the K of each request at this step.

With vLLM's masks for a configured K of 7, 128 requests at K = 1 are 1,024 rows, of which 256 are needed. Here one
kernel writes all of the drafter's inputs. The host knows the number of rows, so nothing waits for the device.

Before the engine takes requests, the kernel is compared with its reference on the device. If they differ, or the kernel
does not compile, vLLM's own layout is used.
"""

from typing import Any

import numpy as np
import torch
from vllm.logger import init_logger
from vllm.utils.torch_utils import async_tensor_h2d

from peagle.engine.drafting.draft_layout import DraftCache, LaidOut, Mask, RowPlan, Verified, laid_out, plan_rows
from peagle.engine.drafting.draft_rows_trials import trials

_LOG = init_logger(__name__)


def is_eligible(proposer: Any) -> bool:
    """Return whether this drafter's rows are of a supported kind."""
    return bool(
        proposer.device.type == "cuda"
        and proposer.method == "eagle3"
        and proposer.parallel_drafting
        and proposer.needs_extra_input_slots
        and proposer.pass_hidden_states_to_model
        and not proposer.use_heterogeneous_vocab
        and not proposer.vllm_config.model_config.uses_mrope
        and not proposer.uses_xdrope_dim
    )


def lays_out(proposer: Any) -> bool:
    """Return whether this module lays out the drafter's rows."""
    return bool(getattr(proposer, "peagle_lays_out", False))


def agrees(proposer: Any) -> bool:
    """Return whether the kernel agrees with the reference on every rank; warn once of a difference or an error."""
    try:
        different = _difference(proposer)
    except Exception as error:
        different = f"does not run: {type(error).__name__}: {error}"
    different = _on_any_rank(proposer, different)
    if different:
        _LOG.warning(
            "The kernel that lays out the drafter's rows %s. vLLM's own layout is used instead: every step drafts %d "
            "tokens for each request, whatever K is",
            different,
            proposer.extra_slots_per_request,
        )
    return not different


def _difference(proposer: Any) -> str:
    """Describe how the kernel differs from its reference; empty if it agrees."""
    # Imported here: only a GPU's PyTorch brings Triton.
    from peagle.engine.drafting.draft_rows_kernel import empty, lay_out

    state = proposer.hidden_states
    for plan, verified, mask, cache in trials(
        proposer.extra_slots_per_request, state.shape[1], state.dtype, proposer.device, proposer.block_size
    ):
        out = empty(plan, verified)
        lay_out(plan, async_tensor_h2d(plan.packed(), device=proposer.device), verified, mask, cache, out)
        expected = laid_out(plan, verified, mask, cache)
        for name in LaidOut.__slots__:
            if not torch.equal(getattr(out, name), getattr(expected, name)):
                return f"computes other {name} than its reference"
    return ""


def _on_any_rank(proposer: Any, different: str) -> str:
    """Return the first rank's problem, if any: ranks with different rows would wait forever."""
    if proposer.vllm_config.parallel_config.tensor_parallel_size == 1:
        return different
    from vllm.distributed.parallel_state import get_tp_group

    # Not the ranks of other pipeline stages, which have no drafter.
    group = get_tp_group()
    found: list[Any] = [None] * group.world_size
    torch.distributed.all_gather_object(found, different, group=group.cpu_group)
    return next(filter(None, found), "")


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
    """Replace vLLM's `set_inputs_first_pass`, for each request's own K of at most `num_speculative_tokens`.

    Returns:
        The number of rows; the rows to draft from, int32 [requests * K]; attention metadata of all rows.
    """
    from peagle.engine.drafting.draft_rows_kernel import lay_out

    device, requests = proposer.device, cad.num_reqs
    plan = plan_rows(
        cad.query_start_loc_cpu.numpy(), own_depths(proposer, requests), max(1, proposer.num_speculative_tokens)
    )
    packed = async_tensor_h2d(plan.packed(), device=device)
    if num_rejected_tokens_gpu is None:
        num_rejected_tokens_gpu = torch.zeros(requests, dtype=torch.int32, device=device)
    rows = plan.rows
    out = LaidOut(
        ids=proposer.input_ids,
        positions=proposer.positions,
        slots=torch.empty(rows, dtype=torch.int64, device=device),
        states=proposer.hidden_states,
        to_sample=torch.empty(requests * plan.depth, dtype=torch.int32, device=device),
    )
    verified = Verified(
        target_token_ids,
        target_positions,
        target_hidden_states,
        next_token_ids,
        num_rejected_tokens_gpu,
        cad.query_start_loc,
    )
    mask = Mask(proposer.parallel_drafting_token_id, proposer.parallel_drafting_hidden_state_tensor)
    cache = DraftCache(cad.block_table_tensor, proposer.block_size, proposer.max_model_len)
    lay_out(plan, packed, verified, mask, cache, out)
    return rows, out.to_sample, _metadata(cad, plan, packed, out.slots)


def own_depths(proposer: Any, requests: int) -> np.ndarray[Any, np.dtype[np.int32]]:
    """Return K of each request of the batch: the step's, or its own if that is smaller."""
    depth = proposer.num_speculative_tokens
    depths = np.full(requests, depth, dtype=np.int32)
    runner = proposer.peagle_runner
    if own := runner.peagle_own_depths:
        for at, request_id in enumerate(runner.input_batch.req_ids[:requests]):
            depths[at] = min(own.get(request_id, depth), depth)
    return depths


def _metadata(cad: Any, plan: RowPlan, packed: torch.Tensor, slots: torch.Tensor) -> Any:
    """Build attention metadata for the rows. Lengths include rejected rows, as in vLLM; those rows come last."""
    masks = torch.from_numpy(plan.masks)
    ends = len(plan.starts)

    def longer(lengths: torch.Tensor | None) -> torch.Tensor | None:
        return None if lengths is None else lengths + masks

    return cad.replace(
        query_start_loc=packed[:ends],
        query_start_loc_cpu=torch.from_numpy(plan.starts),
        seq_lens=cad.seq_lens + packed[ends : ends + cad.num_reqs],
        num_actual_tokens=plan.rows,
        max_query_len=plan.longest,
        max_seq_len=cad.max_seq_len + int(plan.masks.max()),
        slot_mapping=slots,
        seq_lens_cpu_upper_bound=longer(cad.seq_lens_cpu_upper_bound),
        _seq_lens_cpu=longer(cad._seq_lens_cpu),
        # Caches of the replaced values.
        _num_computed_tokens_cache=None,
        _token_to_req_indices_cache=None,
    )
