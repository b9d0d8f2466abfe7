"""Sends drafts from the worker to the scheduler with the step's output, and skips the drafter if none are wanted.

vLLM fetches a step's drafts with a separate call, one of three calls that a step makes to the worker. Here the worker
sends them with the output, which saves that call. A step that asks for no drafts (`num_spec_tokens_to_schedule` is 0)
uses vLLM's path for contexts in which its drafter cannot draft. Its requests then have a gap in the drafter's cache, so
the scheduler must ensure that they draft no more.

If the next step is scheduled before the last output is known, drafts stay on the device. Drafts to be compared with
the target's later tokens are reported one step later.

If one request of a batch is so close to the end of its context that the drafter has no room, vLLM drafts for none of
them and returns zeros. Verified, these would count as rejected drafts, so they are passed on as no drafts. If drafts
stay on the device the zeros are verified, and the scheduler is told to leave them out of its counts.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

DRAFTS = "peagle_drafts"
"""Attribute of a step's output: its drafts."""
CONFIDENCES = "peagle_confidences"
"""Attribute of a step's output: the drafter's probability of each drafted token, by request. Also of the drafter."""
ROWS = "peagle_rows"
"""Attribute of a step's output: the drafter's rows, and how many of them vLLM laid out for the largest K."""
TOLD = "peagle_told"
"""Attribute of a step's output: the previous step's drafts by request, if these were to be reported."""
UNDRAFTED = "peagle_undrafted"
"""Attribute of a step's output, set if drafts stay on the device, were asked for, and are zeros instead of drafts."""
OWN_DEPTHS = "peagle_own_depths"
"""Attribute of a scheduled step: K of each request with fewer drafts than the step's K."""
TELLS = "peagle_tells"
"""Attribute of a scheduled step, set if drafts that stay on the device are to be reported with the next output."""
_MARK = "_peagle_step_drafts"


def install() -> None:
    """Patch this process's model runner, which on a CPU is a subclass. Idempotent."""
    # Imported here: the scheduler's process has no model, and the import takes seconds.
    from vllm.v1.worker.gpu_model_runner import AsyncGPUModelRunnerOutput, GPUModelRunner

    if hasattr(GPUModelRunner, _MARK):
        return
    sample, fits = GPUModelRunner.sample_tokens, GPUModelRunner._input_fits_in_drafter
    copy, finish = GPUModelRunner._copy_draft_token_ids_to_cpu, AsyncGPUModelRunnerOutput.get_output

    @functools.wraps(sample)
    def sample_tokens(runner: Any, grammar_output: Any) -> Any:
        state = runner.execute_model_state
        runner.peagle_is_asked = state is not None and state[0].num_spec_tokens_to_schedule > 0
        runner.peagle_has_drafted = False
        runner.peagle_own_depths = {} if state is None else getattr(state[0], OWN_DEPTHS, {})
        runner.peagle_rows = None
        output = sample(runner, grammar_output)
        if runner.peagle_rows:
            setattr(output, ROWS, runner.peagle_rows)
        if isinstance(output, AsyncGPUModelRunnerOutput):
            if runner.peagle_is_asked and not runner.peagle_has_drafted:
                setattr(output, UNDRAFTED, True)
            # Once this step's output is known, the last step's drafts are known too, so nothing waits for them.
            setattr(output, TOLD, getattr(runner, TOLD, None))
            setattr(runner, TOLD, sent(runner) if runner.peagle_has_drafted and hasattr(state[0], TELLS) else None)
        # An asynchronous output has its own type, and its drafts stay on the worker.
        if runner.num_spec_tokens and runner.peagle_is_asked and isinstance(output, ModelRunnerOutput):
            drafts = runner.take_draft_token_ids()
            if drafts is not None and not runner.peagle_has_drafted:
                drafts = DraftTokenIds(drafts.req_ids, [[] for _ in drafts.req_ids])
            elif drafts is not None and (told := getattr(runner.drafter, CONFIDENCES, None)):
                setattr(output, CONFIDENCES, dict(zip(drafts.req_ids, told, strict=True)))
            setattr(output, DRAFTS, drafts)
        return output

    @functools.wraps(fits)
    def fits_in_drafter(runner: Any, metadata: Any) -> bool:
        runner.peagle_has_drafted = runner.peagle_is_asked and bool(fits(runner, metadata))
        return bool(runner.peagle_has_drafted)

    @functools.wraps(copy)
    def copy_drafts(runner: Any, *args: Any, **kwargs: Any) -> None:
        # If none were asked for, these would be zeros that are not used.
        if runner.peagle_is_asked or runner.use_async_scheduling:
            copy(runner, *args, **kwargs)

    @functools.wraps(finish)
    def get_output(output: Any) -> Any:
        finished = finish(output)
        if rows := getattr(output, ROWS, None):
            setattr(finished, ROWS, rows)
        if hasattr(output, UNDRAFTED):
            setattr(finished, UNDRAFTED, True)
        if tell := getattr(output, TOLD, None):
            setattr(finished, TOLD, tell())
        return finished

    GPUModelRunner.sample_tokens = sample_tokens
    AsyncGPUModelRunnerOutput.get_output = get_output
    GPUModelRunner._input_fits_in_drafter = fits_in_drafter
    GPUModelRunner._copy_draft_token_ids_to_cpu = copy_drafts
    setattr(GPUModelRunner, _MARK, True)


def sent(runner: Any) -> Callable[[], dict[str, list[int]]]:
    """Copy a step's drafts to the host in parallel with the device's next work; the result waits for them."""
    drafts, stream, arrived = runner._draft_token_ids, runner.draft_token_ids_copy_stream, torch.cuda.Event()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        on_host = drafts.to("cpu", non_blocking=True)
        arrived.record()
    # Keep a reference to the drafts, so that their memory is not reused before they are copied.
    return functools.partial(_arrived, runner.input_batch.req_ids.copy(), on_host, arrived, drafts)


def _arrived(request_ids: list[str], drafts: Any, arrived: Any, _: Any) -> dict[str, list[int]]:
    arrived.synchronize()
    return dict(zip(request_ids, drafts.tolist(), strict=True))


def fetch_only_what_is_missing(post_step: Any) -> Any:
    """Wrap an engine core's `post_step`, so that it fetches drafts only if they did not come with the output."""

    @functools.wraps(post_step)
    def fetch(core: Any, model_executed: bool) -> None:
        if not getattr(core.scheduler, "has_drafts", False):
            post_step(core, model_executed)

    return fetch


class DraftTakingScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, with drafts taken from the step's output."""

    has_drafts = False
    """Whether there are no drafts to fetch after the last finished step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._whole_always = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)
        if self.dynamic_sd_lookup is None:
            self.pad_with_empty_drafts(True)

    def pad_with_empty_drafts(self, pads: bool) -> None:
        """Set whether vLLM gives a new request that computes one token Kmax empty drafts, its default.

        They keep a batch of full drafts uniform, for full CUDA graphs. A CPU has no graphs, and its kernel takes an
        empty draft for a token, so it never uses them. Any schedule of K, even a constant one, prevents them.
        """
        pads = pads and self.vllm_config.device_config.device_type != "cpu"
        self.dynamic_sd_lookup = None if pads else self._whole_always

    def take_confidences(self, confidences: dict[str, list[float]]) -> None:
        """Receive the drafter's probabilities of the drafted tokens, by request, if it reported them."""

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        drafts = getattr(model_runner_output, DRAFTS, None)
        if drafts is not None:
            self.update_draft_token_ids(drafts)
            self.take_confidences(getattr(model_runner_output, CONFIDENCES, None) or {})
        self.has_drafts = drafts is not None or scheduler_output.num_spec_tokens_to_schedule == 0
        return outputs
