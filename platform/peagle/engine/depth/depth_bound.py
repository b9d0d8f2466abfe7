"""A client's bound of K for its request, and schedulers with a fixed K that respect it."""

from collections.abc import Mapping
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.request import Request

from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG
from peagle.engine.patches.step_drafts import OWN_DEPTHS, DraftTakingScheduler


def bound_of(request: Request) -> int | None:
    """Return the most draft tokens that a step may verify for this request; None without a bound."""
    params = request.sampling_params
    extra = params.extra_args if params is not None else None
    bound: int | None = extra.get(DEPTH_MAX_ARG) if extra else None
    return bound


def tell_own_depths(output: SchedulerOutput, requests: Mapping[str, Request], resting: frozenset[str]) -> None:
    """Record in `output` the requests whose drafts are shorter than the step's; no one verifies the rest.

    Args:
        resting: Requests that draft nothing.
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
    """Schedules a fixed K, and requests' own bounds below it."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        for request in self.running:
            if (bound := bound_of(request)) is not None:
                # A new list: under asynchronous scheduling all requests share one list of placeholders.
                request.spec_token_ids = request.spec_token_ids[:bound]
        output = super().schedule(*args, **kwargs)
        tell_own_depths(output, self.requests, frozenset())
        return output

    def _get_local_prefix_cache_hit(self, request: Request) -> Any:
        """vLLM calls this before it admits a request. Empty drafts would also exceed the request's bound."""
        self.pad_with_empty_drafts(bound_of(request) is None)
        return super()._get_local_prefix_cache_hit(request)


class AsyncStaticDepthScheduler(StaticDepthScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same for asynchronous scheduling, which schedules the next step before the last output is known."""
