"""Keeps a request's draft counts if its client reads slower than its tokens arrive.

vLLM then merges the waiting parts of an answer, and loses the draft counts of the last part.
"""

import functools
from typing import Any


def install() -> None:
    """Make merged outputs of this process keep draft counts. Idempotent."""
    from vllm.outputs import RequestOutput

    add = RequestOutput.add
    if hasattr(add, "__wrapped__"):
        return

    @functools.wraps(add)
    def keeps_counts(output: Any, next_output: Any, aggregate: bool) -> None:
        add(output, next_output, aggregate)
        for later in next_output.outputs if aggregate else ():
            if later.spec_decode_metrics is not None:
                for completion in output.outputs:
                    if completion.index == later.index:
                        completion.spec_decode_metrics = later.spec_decode_metrics

    RequestOutput.add = keeps_counts
