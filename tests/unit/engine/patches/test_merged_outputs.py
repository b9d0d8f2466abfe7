"""Parts of an answer that wait for a slow client are merged without losing its draft counts."""

import subprocess
import sys

CODE = """
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.v1.metrics.stats import RequestSpecDecodeMetrics
from peagle.engine.patches.merged_outputs import install

def part(index, counts):
    made = CompletionOutput(index, "x", [1], None, None, spec_decode_metrics=counts)
    return RequestOutput("r", None, [1], None, [made], finished=counts is not None)

def merged(aggregate):
    counts = {index: RequestSpecDecodeMetrics.new(index + 1) for index in (0, 1)}
    output = part(0, None)
    for next_output in (part(1, None), part(0, counts[0]), part(1, None), part(1, counts[1])):
        output.add(next_output, aggregate)
    return [completion.spec_decode_metrics is counts[completion.index] for completion in output.outputs]

assert merged(True) == [False, False], "vLLM keeps them by itself: the patch can go"
install()
install()
assert merged(True) == merged(False) == [True, True]
"""


def test_merged_outputs_keep_each_choice_s_counts() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
