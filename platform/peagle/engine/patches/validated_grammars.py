"""A grammar that vLLM has validated is not validated again, in the event loop that sends everybody's tokens.

Validation parses it. Where a replica has had that done in a thread, vLLM would do it a second time as it takes the
request in.
"""

import functools
from typing import Any


def install() -> None:
    """Have this process validate each request's grammar once; again, it changes nothing."""
    from vllm.sampling_params import SamplingParams

    validate = SamplingParams._validate_structured_outputs
    if hasattr(validate, "__wrapped__"):
        return

    @functools.wraps(validate)
    def once(params: Any, *args: Any) -> None:
        # It names the backend as it validates, and no client can.
        if params.structured_outputs is None or params.structured_outputs._backend is None:
            validate(params, *args)

    SamplingParams._validate_structured_outputs = once
