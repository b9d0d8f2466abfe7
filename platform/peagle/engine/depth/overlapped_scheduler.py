"""Live depth under asynchronous scheduling, with drafts that stay on the device."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request

from peagle.engine.depth.depth_bound import bound_of
from peagle.engine.depth.scheduler import LiveDepthScheduler, ScheduledStep
from peagle.engine.depth.step_sums import CellSums, CutDraft
from peagle.engine.patches.step_drafts import TOLD, UNDRAFTED


class AsyncLiveDepthScheduler(LiveDepthScheduler, AsyncScheduler):  # type: ignore[misc]
    """Live depth if the next step is scheduled before the last output is known."""

    _undrafted = False
    """Whether the drafter had no room in the last finished step, so that the next step verifies zeros."""

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if scheduler_output.num_scheduled_tokens:
            self._undrafted = hasattr(model_runner_output, UNDRAFTED)
        return outputs

    def _drafter_has(self, request: Request, computed: int) -> int:
        """Drafts under verification count as computed until the result is known.

        The placeholders also include a token of this step, and at least one for the steps before it.
        """
        unsure: int = request.num_output_placeholders - 2
        return max(0, computed - max(0, unsure))

    def _keep_tails(self, whole_drafts: dict[str, list[int]], output: SchedulerOutput, cell: CellSums) -> None:
        """Keep nothing yet: drafts are placeholders here."""

    def _count_drafts(self, step: ScheduledStep, cell: CellSums, model_output: ModelRunnerOutput) -> None:
        if not self._undrafted:
            super()._count_drafts(step, cell, model_output)
        if told := getattr(model_output, TOLD, None):
            self._keep_told(told, step.output, cell)

    def _keep_told(self, told: dict[str, list[int]], output: SchedulerOutput, cell: CellSums) -> None:
        """Keep the tails of drafts that stayed on the device: made in the previous step, partly verified in this one.

        The previous step's tokens are known by now; this step's are not. Tails under a grammar are excluded, because
        they have not been checked against it.
        """
        for request_id in output.num_scheduled_tokens:
            request = self.requests.get(request_id)
            draft, verified = told.get(request_id, []), len(output.scheduled_spec_decode_tokens.get(request_id, ()))
            if request is None or request.resumable or request.use_structured_output or request_id in self._gaps:
                continue
            if len(draft := draft[: bound_of(request)]) > verified:
                self._tails.add(request_id, CutDraft(cell, request.num_tokens, verified, draft))
