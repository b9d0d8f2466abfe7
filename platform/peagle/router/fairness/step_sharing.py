"""Whose requests take part in an engine's next step, while several clients ask it.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over the tokens of steps. Each flow has a virtual time: the tokens
that were computed for it, divided by its weight. A step is filled in the order of virtual times until its tokens are
used up; requests that are left out rest where they are and come to their turn in a later step.

A flow that asks less than its share falls behind the others' virtual times, by the tokens of a few steps at most. So
much it may catch up with at once, and in one step: its prompt does not take turns with the requests of those who flood
the engine. More is not saved up.

A step's tokens bound how long a client waits for the step before its own, so a prompt that is longer is computed over
several steps. They cost throughput only where an engine gains from larger batches than that, and are bounded only while
several flows ask or have just asked.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

BATCH_SHARE = 1 / 16
"""The weight of the batch class beside the interactive one: next to nothing, so that it yields, but never nothing."""
BURST_STEPS = 4
"""Of how many steps' tokens an interactive flow may be behind."""
HELD_S = 1.0
"""A flow that asked so recently is expected to ask again: others do not fill the engine in its pauses."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The requests of one client and class, which share what the client's `weight` gives them."""

    client: str
    weight: float = 1.0
    is_batch: bool = False

    @property
    def pace(self) -> float:
        """Tokens per unit of virtual time."""
        return self.weight * (BATCH_SHARE if self.is_batch else 1.0)


@dataclass(frozen=True, slots=True)
class Work:
    """One request, and how many tokens the next step would compute for it.

    Attributes:
        is_divisible: Whether the step may compute fewer of them, as of a prompt.
        waits: Whether it has no place in the batch yet. An engine computes those that have one first.
    """

    request_id: str
    flow: Flow
    tokens: int
    is_divisible: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Shares:
    """Who takes part in a step.

    Attributes:
        request_ids: In the order in which the step's tokens are given to them.
        tokens: How many tokens the step computes at most.
    """

    request_ids: tuple[str, ...]
    tokens: int


class StepShares:
    """Virtual times of the flows of one engine. Times are seconds of any one clock.

    Args:
        step_tokens: How many tokens a shared step computes. More are computed only of the one request that comes
            first: if it cannot be divided, or as far as its flow is behind.
    """

    def __init__(self, step_tokens: int) -> None:
        self._step_tokens = step_tokens
        self._now = 0.0  # the latest virtual time at which a step has begun to serve a flow
        self._times: dict[Flow, float] = {}
        self._open: Counter[Flow] = Counter()
        self._left_s: dict[Flow, float] = {}

    def enter(self, flow: Flow) -> None:
        """A request of `flow` has come."""
        burst = 0 if flow.is_batch else BURST_STEPS * self._step_tokens / flow.pace
        self._times[flow] = max(self._times.get(flow, -inf), self._now - burst)
        self._left_s.pop(flow, None)
        self._open[flow] += 1

    def leave(self, flow: Flow, now_s: float) -> None:
        """A request of `flow` has ended."""
        self._open[flow] -= 1
        if not self._open[flow]:
            del self._open[flow]
            self._left_s[flow] = now_s

    def are_needed(self, now_s: float) -> bool:
        """Whether more than one flow asks, or has just asked."""
        if len(self._open) > 1:
            return True
        for flow in [flow for flow, left_s in self._left_s.items() if now_s - left_s >= HELD_S]:
            del self._left_s[flow], self._times[flow]
        return len(self._open) + len(self._left_s) > 1

    def share(self, work: Iterable[Work], most: int) -> Shares:
        """Who takes part in the next step, at most `most`; `work` is in order of arrival."""
        queues: dict[Flow, deque[Work]] = {}
        for each in work:
            queues.setdefault(each.flow, deque()).append(each)
        # At the same time the one with fewer requests goes first, such as one that begins to ask.
        heap = [(self._times[flow], flow.is_batch, self._open[flow], place, flow) for place, flow in enumerate(queues)]
        heapify(heap)
        chosen: list[Work] = []
        tokens = left = self._step_tokens
        while heap and left > 0 and len(chosen) < most:
            time, is_batch, requests, place, flow = heappop(heap)
            each = queues[flow][0]
            if not chosen:
                behind = (heap[0][0] - time) * flow.pace if heap else 0
                tokens = left = max(tokens, min(each.tokens, int(behind)) if each.is_divisible else each.tokens)
            elif each.tokens > left and not each.is_divisible:
                continue  # its time has not passed, so that it comes first in a later step, whatever its size
            queues[flow].popleft()
            chosen.append(each)
            left -= each.tokens
            if queues[flow]:
                heappush(heap, (time + each.tokens / flow.pace, is_batch, requests, place, flow))
        self._now = max([self._now, *(self._times[each.flow] for each in chosen)])
        # What is divided would take the tokens of those that the engine computes after it.
        if left < 0 and any(each.waits for each in chosen[:-1]):
            chosen.pop()
        return Shares(tuple(each.request_id for each in chosen), tokens)

    def charge(self, flow: Flow, tokens: int) -> None:
        """A step computes `tokens` for `flow`."""
        self._times[flow] += tokens / flow.pace
