"""A request's own bound of K, which its client wrote, and schedulers of a fixed K that keep to it."""

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from peagle.api.speculation_field import DEPTH_MAX_ARG
from peagle.engine.patches.step_drafts import DraftTakingScheduler


def bound_of(request: Request) -> int | None:
    """The most draft tokens that a step may verify for this request; None where its client set no bound."""
    params = request.sampling_params
    extra = params.extra_args if params is not None else None
    bound: int | None = extra.get(DEPTH_MAX_ARG) if extra else None
    return bound


class _Bounded:
    """Cuts each running request's draft to its bound, before vLLM schedules it."""

    running: list[Request]

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        for request in self.running:
            if (bound := bound_of(request)) is not None:
                # A new list: under asynchronous scheduling all requests share one list of placeholders.
                request.spec_token_ids = request.spec_token_ids[:bound]
        return super().schedule(*args, **kwargs)  # type: ignore[misc]


class StaticDepthScheduler(_Bounded, DraftTakingScheduler):
    """A fixed K, where drafts come with the step's output."""


class AsyncStaticDepthScheduler(_Bounded, AsyncScheduler):  # type: ignore[misc]
    """A fixed K, where the next step is scheduled before the last one's output is known."""
