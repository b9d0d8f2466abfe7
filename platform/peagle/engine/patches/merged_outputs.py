"""What was drafted for a request is told even where its client reads slower than its tokens come.

vLLM then merges the parts of an answer that wait, and loses with them the draft counts that the last part brings.
"""

import functools
from typing import Any


def install() -> None:
    """Have merged outputs of this process keep draft counts; again, it changes nothing."""
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
