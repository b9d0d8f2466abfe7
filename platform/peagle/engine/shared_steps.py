"""Shares an engine's steps among its clients; see `router/fairness/step_sharing.py`.

While one client asks, vLLM schedules as usual. While several do, requests without a part in a step are hidden from the
scheduler for that step: running requests keep their blocks and drafts, waiting ones their place in the queue. So a
client with hundreds of running requests makes room for another within one step, without recomputation. Only if blocks
run out does the latest resting request restart from its prompt, by vLLM's preemption.

To a worker a resting request looks like one that did not fit in a step's token budget: it leaves the batch and comes
back, which vLLM's model runners support. Outputs do not change.
"""

from itertools import chain
from math import ceil
from time import monotonic
from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import Request

from peagle.engine.arguments import STEP_TOKENS, settings_of
from peagle.router.fairness.step_sharing import Flow, StepShares, Work

FLOW_ARG = "peagle_flow"
"""Key of a request's flow, a list of its fields, in vLLM's `SamplingParams.extra_args` or
`PoolingParams.extra_kwargs`."""
_UNNAMED = Flow("")


def flow_of(request: Request) -> Flow:
    """Return the request's flow; all requests without a name share one flow."""
    sampling, pooling = request.sampling_params, request.pooling_params
    extra = sampling.extra_args if sampling is not None else pooling.extra_kwargs if pooling is not None else None
    told = extra.get(FLOW_ARG) if extra else None
    return Flow(*told) if told else _UNNAMED


def _left(request: Request) -> int:
    """Return the number of tokens to compute, including drafts."""
    left: int = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
    return left


class SharingScheduler(Scheduler):  # type: ignore[misc]
    """Adds sharing to the scheduler that follows it in the method resolution order."""

    running: list[Request]
    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shares = StepShares(settings_of(self.vllm_config)[STEP_TOKENS])
        self._flows: dict[str, Flow] = {}

    def add_request(self, request: Request) -> None:
        super().add_request(request)
        if request.request_id not in self._flows:
            self._flows[request.request_id] = flow = flow_of(request)
            self._shares.enter(flow)

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        if (flow := self._flows.pop(request.request_id, None)) is not None:
            self._shares.leave(flow, monotonic())
        return super()._free_request(request, *args, **kwargs)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        # After sharing ends, more requests may be running than a batch has places for.
        if not self._shares.are_needed(monotonic()) and len(self.running) <= self.max_num_running_reqs:
            return super().schedule(*args, **kwargs)
        work = {each.request_id: each for each in self._work()}
        shares = self._shares.share(work.values(), self.max_num_running_reqs)
        chosen = {request_id: place for place, request_id in enumerate(shares.request_ids)}
        order = list(self.running)
        resting = [request for request in order if request.request_id not in chosen]
        going_on = [request for request in order if request.request_id in chosen]
        self.running = sorted(going_on, key=lambda each: chosen[each.request_id])
        self._make_room(resting, sum(self._blocks(self.requests[each]) for each in chosen))
        held = []
        for queue in (self.waiting, self.skipped_waiting):
            out = [each for each in queue if each.request_id in work and each.request_id not in chosen]
            queue.remove_requests(out)
            held.append((queue, out))
        for request in resting:
            self._rest(request)
        most = self.max_num_scheduled_tokens
        self.max_num_scheduled_tokens = min(most, shares.tokens)
        try:
            output = super().schedule(*args, **kwargs)
        finally:
            self.max_num_scheduled_tokens = most
        for queue, out in held:
            for request in out:
                queue.add_request(request)
        places = {request.request_id: place for place, request in enumerate(order)}
        self.running = sorted([*self.running, *resting], key=lambda each: places.get(each.request_id, len(places)))
        for request_id, tokens in output.num_scheduled_tokens.items():
            self._shares.charge(self._flows[request_id], tokens)
        return output

    def _work(self) -> list[Work]:
        """List what a step would compute for each request, running requests first, in order of arrival."""
        largest = self.scheduler_config.max_num_batched_tokens
        ready = (each for each in chain(self.skipped_waiting, self.waiting) if not self._waits_for_others(each))
        requests = chain(((each, False) for each in self.running), ((each, True) for each in ready))
        return [
            Work(
                each.request_id,
                self._flows[each.request_id],
                max(1, min(_left(each), largest)),
                is_divisible=self._is_divisible(each),
                waits=waits,
            )
            for each, waits in requests
        ]

    def _is_divisible(self, request: Request) -> bool:
        """Return whether a step may compute part of it: of a prompt, unless its images must not be split."""
        config = self.scheduler_config
        if not config.enable_chunked_prefill or (request.has_encoder_inputs and config.disable_chunked_mm_input):
            return False
        unknown: int = request.num_tokens - request.num_computed_tokens
        return unknown > 1

    def _waits_for_others(self, request: Request) -> bool:
        """Return whether it cannot be scheduled yet, for example because its grammar is still being compiled."""
        return bool(self._is_blocked_waiting_status(request.status))

    def _blocks(self, request: Request) -> int:
        """Return the most further blocks that it may take: a prompt is admitted only if all of it fits."""
        blocks: int = ceil((_left(request) + self.num_lookahead_tokens) / self.block_size)
        return blocks + 1

    def _make_room(self, resting: list[Request], blocks: int) -> None:
        """Free blocks for the step by preempting resting requests, the latest first."""
        pool = self.kv_cache_manager.block_pool
        while resting and pool.get_num_free_blocks() < blocks:
            self._preempt_request(resting.pop(), monotonic())

    def _rest(self, request: Request) -> None:
        """Leave a request out of the next step."""


class AsyncSharingScheduler(SharingScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same for asynchronous scheduling, which schedules the next step before the last output is known."""

    def _rest(self, request: Request) -> None:
        # Its draft is on the device, which only keeps drafts of the previous step.
        request.spec_token_ids = []
