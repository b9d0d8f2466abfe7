"""How drafts get from the worker to the scheduler: with the step's output, and not at all where none are wanted.

vLLM fetches a step's drafts by a call of their own, one of three that a step makes to the worker. Here the worker hands
them over with the output, which saves that call. A step that asks for no drafts (`num_spec_tokens_to_schedule` is 0)
takes the way that vLLM has for contexts in which its drafter cannot draft. Its requests then have a gap in the
drafter's cache, so the scheduler that asks for it has to see that they draft no more.

Where the next step is scheduled before the last one's output is known, drafts stay on the device. Those that are to be
compared with what the target says later are told one step on.

Where one request of a batch is so near its context's end that the drafter has no room, vLLM drafts for none of them and
hands out zeros. The target would verify those, and they would count as wrong drafts: they are handed over as none.
Where drafts stay on the device it does verify them, and the scheduler is told to leave them out of its counts.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

DRAFTS = "peagle_drafts"
"""The attribute of a step's output that holds its drafts."""
CONFIDENCES = "peagle_confidences"
"""The one that holds the drafter's probability of each drafted token, by request; until then the drafter has it."""
ROWS = "peagle_rows"
"""The one that holds how many rows the drafter passed over, and how many of them vLLM laid out for the largest K."""
TOLD = "peagle_told"
"""The one that holds what the step before drafted, by request, where that was to be told."""
UNDRAFTED = "peagle_undrafted"
"""The one that is there where drafts stay on the device, were asked for, and are zeros that stand for none."""
OWN_DEPTHS = "peagle_own_depths"
"""The attribute of what is scheduled that holds K of each request whose drafts are to be fewer than the step's."""
TELLS = "peagle_tells"
"""The one that is there where drafts which stay on a device are to be told as well, with the next step's output."""
_MARK = "_peagle_step_drafts"


def install() -> None:
    """Teach this process's model runner, which on a CPU is a subclass; again, it changes nothing."""
    # Imported here: the scheduler's process has no model, and this takes seconds.
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
            # By the time that this step's output is known, so is what the last step drafted: nothing waits for it.
            setattr(output, TOLD, getattr(runner, TOLD, None))
            setattr(runner, TOLD, sent(runner) if runner.peagle_has_drafted and hasattr(state[0], TELLS) else None)
        # An output that is still being computed travels in a form of its own, and its drafts stay with the worker.
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
        # Of a step that was not asked these would be zeros that nobody takes.
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
    """Send a step's drafts to the host, beside what the device does next; what is returned waits for them."""
    drafts, stream, arrived = runner._draft_token_ids, runner.draft_token_ids_copy_stream, torch.cuda.Event()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        on_host = drafts.to("cpu", non_blocking=True)
        arrived.record()
    # With the drafts themselves, whose memory would be given to others before they are sent.
    return functools.partial(_arrived, runner.input_batch.req_ids.copy(), on_host, arrived, drafts)


def _arrived(request_ids: list[str], drafts: Any, arrived: Any, _: Any) -> dict[str, list[int]]:
    arrived.synchronize()
    return dict(zip(request_ids, drafts.tolist(), strict=True))


def fetch_only_what_is_missing(post_step: Any) -> Any:
    """Wrap an engine core's `post_step`, which calls for drafts: not where they came with the output, or are none."""

    @functools.wraps(post_step)
    def fetch(core: Any, model_executed: bool) -> None:
        if not getattr(core.scheduler, "has_drafts", False):
            post_step(core, model_executed)

    return fetch


class DraftTakingScheduler(Scheduler):  # type: ignore[misc]
    """vLLM's scheduler, taking drafts from the output that they came with."""

    has_drafts = False
    """Whether there is nothing to call for after the step that ended last."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._whole_always = [self.num_spec_tokens] * (self.max_num_running_reqs + 1)
        if self.dynamic_sd_lookup is None:
            self.pad_with_empty_drafts(True)

    def pad_with_empty_drafts(self, pads: bool) -> None:
        """Whether vLLM gives a new request that computes one token Kmax empty drafts, as by itself it does.

        They keep a batch of whole drafts uniform, for full CUDA graphs. On a CPU there are none, and its kernel takes
        an empty draft for a token: there it never does. A schedule of K, even a constant one, stops it.
        """
        pads = pads and self.vllm_config.device_config.device_type != "cpu"
        self.dynamic_sd_lookup = None if pads else self._whole_always

    def take_confidences(self, confidences: dict[str, list[float]]) -> None:
        """Drafts came; these are the drafter's probabilities of their tokens, by request, where it told them."""

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        drafts = getattr(model_runner_output, DRAFTS, None)
        if drafts is not None:
            self.update_draft_token_ids(drafts)
            self.take_confidences(getattr(model_runner_output, CONFIDENCES, None) or {})
        self.has_drafts = drafts is not None or scheduler_output.num_spec_tokens_to_schedule == 0
        return outputs
