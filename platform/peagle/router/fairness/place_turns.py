"""Decides which client's request gets the next free place of a model's replicas.

Start-time fair queueing, as for the tokens of steps. Each flow has a virtual time: the expected tokens of its requests
that got a place, divided by its pace. The flow with the earliest time is next; within a flow, the request that came
first. A flow that begins to wait starts at the time of the last served request, so its first request is next, however
many others wait. Unused time is not saved up. Once no request waits, all times are forgotten.
"""

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from peagle.router.fairness.step_sharing import Flow


class PlaceTurns:
    """The waiting requests of one model in one process."""

    def __init__(self) -> None:
        self._now = 0.0  # the virtual time of the latest request that got a place
        self._times: dict[Flow, float] = {}
        self._waiting: dict[Flow, dict[str, int]] = {}  # tokens by request, in order
        self._flows: dict[str, Flow] = {}

    def enter(self, request_id: str, flow: Flow, tokens: int, again: bool = False) -> None:
        """Add a waiting request.

        Args:
            request_id: Unique among the waiting requests.
            flow: Its flow.
            tokens: Expected tokens of its prompt and all its answers; at least 1.
            again: Whether it had a place and lost it. It goes first within its flow, which gets its tokens back.
        """
        mine = self._waiting.get(flow, {})
        if again:
            self._times[flow] = self._times.get(flow, self._now) - tokens / flow.pace
        if again or not mine:
            self._times[flow] = max(self._times.get(flow, self._now), self._now)
        self._waiting[flow] = {request_id: tokens, **mine} if again else mine
        self._waiting[flow][request_id] = tokens
        self._flows[request_id] = flow

    def admit(self, request_id: str) -> None:
        """Record that a request has a place; a request that does not wait changes nothing."""
        if (flow := self._flows.get(request_id)) is None:
            return
        self._now = max(self._now, self._times[flow])
        self._times[flow] += self._waiting[flow][request_id] / flow.pace
        self.leave(request_id)

    def leave(self, request_id: str) -> None:
        """Record that a request no longer waits; a second call changes nothing."""
        if (flow := self._flows.pop(request_id, None)) is None:
            return
        del self._waiting[flow][request_id]
        if not self._waiting[flow]:
            del self._waiting[flow]
        if not self._waiting:
            self._now = 0.0
            self._times.clear()

    def in_order(self) -> Iterator[str]:
        """Yield the waiting requests in the order in which they get places, if no others arrive."""
        queues = {flow: iter(waiting.items()) for flow, waiting in self._waiting.items()}
        # At equal times the flow with fewer requests goes first, such as a flow that has just begun.
        heap = [
            (self._times[flow], flow.is_batch, len(self._waiting[flow]), place, flow)
            for place, flow in enumerate(queues)
        ]
        heapify(heap)
        while heap:
            time, is_batch, requests, place, flow = heappop(heap)
            if (found := next(queues[flow], None)) is not None:
                request_id, tokens = found
                heappush(heap, (time + tokens / flow.pace, is_batch, requests - 1, place, flow))
                yield request_id

    def are_of_one_flow(self, *request_ids: str) -> bool:
        """Return whether these requests belong to one flow, so that none takes another flow's turn."""
        return len({self._flows.get(request_id) for request_id in request_ids}) == 1
