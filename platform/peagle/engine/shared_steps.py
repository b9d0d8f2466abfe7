"""An engine's steps, shared out among the clients that ask it; see `router/fairness/step_sharing.py`.

While one client asks, vLLM schedules as it always does. While several do, requests that have no part in a step are out
of the scheduler's sight for that step: those that run keep their blocks and their drafts, those that wait their place.
So a client with hundreds of running requests makes room for another within one step, without computing anything anew.
Only where blocks run out does the latest of those that rest start again from its prompt, as vLLM's preemption has it.

To a worker a request that rests looks like one for which a step's token budget had no room: it leaves the batch and
comes back, which vLLM's model runners know. Outputs do not change.
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
"""Where a request's flow travels, by this name, as a list of its fields: in vLLM's `SamplingParams.extra_args`, or in
`PoolingParams.extra_kwargs`."""
_NOBODY = Flow("")


def flow_of(request: Request) -> Flow:
    """Whose request it is; all requests without a name are one client's."""
    sampling, pooling = request.sampling_params, request.pooling_params
    extra = sampling.extra_args if sampling is not None else pooling.extra_kwargs if pooling is not None else None
    told = extra.get(FLOW_ARG) if extra else None
    return Flow(*told) if told else _NOBODY


def _left(request: Request) -> int:
    """Tokens that are not computed, drafts among them."""
    left: int = request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
    return left


class SharingScheduler(Scheduler):  # type: ignore[misc]
    """Adds shares to whatever scheduler stands behind it in the order of classes."""

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
        # When sharing ends, more requests may run than a batch has places for.
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
        """What a step would compute for each request, those that run first, in the order in which they came."""
        largest = self.scheduler_config.max_num_batched_tokens
        ready = (each for each in chain(self.skipped_waiting, self.waiting) if not self._waits_for_others(each))
        everyone = chain(((each, False) for each in self.running), ((each, True) for each in ready))
        return [
            Work(
                each.request_id,
                self._flows[each.request_id],
                max(1, min(_left(each), largest)),
                is_divisible=self._is_divisible(each),
                waits=waits,
            )
            for each, waits in everyone
        ]

    def _is_divisible(self, request: Request) -> bool:
        """Whether a step may compute a part of it: of a prompt, but not of one whose images must not be divided."""
        config = self.scheduler_config
        if not config.enable_chunked_prefill or (request.has_encoder_inputs and config.disable_chunked_mm_input):
            return False
        unknown: int = request.num_tokens - request.num_computed_tokens
        return unknown > 1

    def _waits_for_others(self, request: Request) -> bool:
        """Whether it could not be scheduled yet, such as one whose grammar is being compiled."""
        return bool(self._is_blocked_waiting_status(request.status))

    def _blocks(self, request: Request) -> int:
        """The most blocks that it takes from now on: a prompt comes in only where there is room for the whole of it."""
        blocks: int = ceil((_left(request) + self.num_lookahead_tokens) / self.block_size)
        return blocks + 1

    def _make_room(self, resting: list[Request], blocks: int) -> None:
        """See that a step finds its blocks: who rests gives back its own, the latest first."""
        pool = self.kv_cache_manager.block_pool
        while resting and pool.get_num_free_blocks() < blocks:
            self._preempt_request(resting.pop(), monotonic())

    def _rest(self, request: Request) -> None:
        """A request is left out of the next step."""


class AsyncSharingScheduler(SharingScheduler, AsyncScheduler):  # type: ignore[misc]
    """The same where the next step is scheduled before the last one's output is known."""

    def _rest(self, request: Request) -> None:
        # Its draft is on the device, where only those of the step before are found.
        request.spec_token_ids = []
