"""Avoids validating a grammar twice in the event loop that sends all tokens.

Validation parses the grammar. If a replica has already done so in a thread, vLLM would repeat it when it accepts the
request.
"""

import functools
from typing import Any


def install() -> None:
    """Make this process validate each request's grammar once. Idempotent."""
    from vllm.sampling_params import SamplingParams

    validate = SamplingParams._validate_structured_outputs
    if hasattr(validate, "__wrapped__"):
        return

    @functools.wraps(validate)
    def once(params: Any, *args: Any) -> None:
        # Validation sets the backend, and no client can.
        if params.structured_outputs is None or params.structured_outputs._backend is None:
            validate(params, *args)

    SamplingParams._validate_structured_outputs = once
