"""A request's own bound of K, which its client wrote, and schedulers of a fixed K that keep to it."""

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG
from peagle.engine.patches.step_drafts import OWN_DEPTHS, DraftTakingScheduler


def bound_of(request: Request) -> int | None:
    """The most draft tokens that a step may verify for this request; None where it has no bound."""
    params = request.sampling_params
    extra = params.extra_args if params is not None else None
    bound: int | None = extra.get(DEPTH_MAX_ARG) if extra else None
    return bound


def tell_own_depths(output: SchedulerOutput, requests: Mapping[str, Request], resting: frozenset[str]) -> None:
    """Say in `output` whose drafts are to be fewer than the step's: nobody verifies the others.

    Args:
        resting: Who drafts nothing.
    """
    own = {}
    for request_id in output.num_scheduled_tokens:
        request = requests[request_id]
        if request_id in resting or request.is_prefill_chunk:
            own[request_id] = 0
        elif (bound := bound_of(request)) is not None:
            own[request_id] = bound
    setattr(output, OWN_DEPTHS, own)


class StaticDepthScheduler(DraftTakingScheduler):
    """A fixed K, and requests' own bounds below it."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        for request in self.running:
            if (bound := bound_of(request)) is not None:
                # A new list: under asynchronous scheduling all requests share one list of placeholders.
                request.spec_token_ids = request.spec_token_ids[:bound]
        output = super().schedule(*args, **kwargs)
        tell_own_depths(output, self.requests, frozenset())
        return output

    def _get_local_prefix_cache_hit(self, request: Request) -> Any:
        """vLLM asks this of a request as it is about to come in: empty drafts, too, would be beyond its bound."""
        self.pad_with_empty_drafts(bound_of(request) is None)
        return super()._get_local_prefix_cache_hit(request)


class AsyncStaticDepthScheduler(StaticDepthScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same where the next step is scheduled before the last one's output is known."""
