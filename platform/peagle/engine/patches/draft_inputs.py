"""Makes vLLM's drafter use rows laid out here, for the K that a step asks for, on CPU and GPU.

vLLM lays out masks for the configured K whatever K a step asks for, and then treats the result as if it had that K
(vllm-project/vllm pull request 45695).
"""

import functools
from typing import Any

from peagle.engine.patches import cpu_draft_inputs, gpu_draft_inputs

_MARK = "_peagle_draft_inputs"


def install() -> None:
    """Patch this process's drafter. Idempotent."""
    # Imported here: the scheduler's process has no drafter, and the import takes seconds.
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    if hasattr(SpecDecodeBaseProposer, _MARK):
        return
    upstream, initialize = SpecDecodeBaseProposer.set_inputs_first_pass, SpecDecodeBaseProposer.initialize_attn_backend

    @functools.wraps(upstream)
    def set_inputs_first_pass(proposer: Any, **inputs: Any) -> Any:
        unfitted = 0
        if cpu_draft_inputs.lays_out(proposer):
            laid_out = cpu_draft_inputs.set_inputs(proposer, **inputs)
        elif gpu_draft_inputs.lays_out(proposer):
            laid_out = gpu_draft_inputs.set_inputs(proposer, **inputs)
        else:
            if proposer.parallel_drafting:
                # The K that vLLM lays out, so that it interprets its own result correctly.
                proposer.num_speculative_tokens = proposer.extra_slots_per_request
            laid_out = upstream(proposer, **inputs)
            unfitted = laid_out[0] if proposer.parallel_drafting else 0
        proposer.peagle_runner.peagle_rows = laid_out[0], unfitted
        return laid_out

    @functools.wraps(initialize)
    def initialize_attn_backend(proposer: Any, *args: Any, **kwargs: Any) -> None:
        initialize(proposer, *args, **kwargs)
        # vLLM may call this more than once, to measure the memory of graphs.
        if not hasattr(proposer, "peagle_lays_out"):
            proposer.peagle_lays_out = gpu_draft_inputs.is_eligible(proposer) and gpu_draft_inputs.agrees(proposer)

    SpecDecodeBaseProposer.set_inputs_first_pass = set_inputs_first_pass
    SpecDecodeBaseProposer.initialize_attn_backend = initialize_attn_backend
    setattr(SpecDecodeBaseProposer, _MARK, True)
