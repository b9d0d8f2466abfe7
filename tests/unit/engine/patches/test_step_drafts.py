"""What vLLM's model runner sends with a step's output, in addition to vLLM's own data."""

import subprocess
import sys

import pytest

pytest.importorskip("vllm")

# One process, since importing vLLM takes seconds. It keeps the replaced methods.
CODE = """
from types import SimpleNamespace
from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput, GPUModelRunner
from peagle.engine.patches import step_drafts

class Output(AsyncGPUModelRunnerOutput):
    def __init__(self):
        self.finished = SimpleNamespace()

asked = []

def sample_tokens(runner, grammar_output):
    asked.append(runner.peagle_own_depths)
    runner.peagle_has_drafted = runner.next_rows > 0
    if runner.next_rows:
        runner.peagle_rows = runner.next_rows, 0
    return Output()

AsyncGPUModelRunnerOutput.get_output = lambda output: output.finished
GPUModelRunner.sample_tokens = sample_tokens
step_drafts.sent = lambda runner: lambda: {"a": [runner.next_rows]}
step_drafts.install()
step_drafts.install()
runner = SimpleNamespace(num_spec_tokens=7, use_async_scheduling=True)

def step(rows, **attributes):
    scheduled = SimpleNamespace(num_spec_tokens_to_schedule=3, **attributes)
    runner.execute_model_state, runner.next_rows = (scheduled,), rows
    return vars(GPUModelRunner.sample_tokens(runner, None).get_output())

assert step(12) == {"peagle_rows": (12, 0)}
assert step(0) == {"peagle_undrafted": True}, "no drafter ran"
assert step(12, peagle_tells=True) == {"peagle_rows": (12, 0)}, "its drafts are not known yet"
assert step(5) == {"peagle_rows": (5, 0), "peagle_told": {"a": [5]}}
assert step(6) == {"peagle_rows": (6, 0)}
assert step(0, peagle_tells=True) == {"peagle_undrafted": True}
assert step(6) == {"peagle_rows": (6, 0)}, "what has not drafted has nothing to tell"
asked.clear()
step(4, peagle_own_depths={"a": 0})
step(4)
assert asked == [{"a": 0}, {}]
"""


def test_an_output_that_is_still_being_computed_tells_its_rows_and_what_the_step_before_drafted() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
