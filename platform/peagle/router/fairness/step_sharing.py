"""Decides which clients' requests take part in an engine's next step.

Start-time fair queueing (Goyal, Vin and Cheng, 1996) over the tokens of steps. Each flow has a virtual time: the tokens
computed for it, divided by its weight. A step is filled in the order of virtual times until its tokens are used up.
Requests left out stay where they are and get their turn in a later step.

A flow that asks for less than its share falls behind the others' virtual times, by the tokens of a few steps at most.
It may catch up by this amount at once, in one step, so its prompt does not take turns with the requests of clients that
flood the engine. More is not saved up.

A step's tokens bound how long a client waits for the step before its own, so a longer prompt is computed over several
steps. The bound costs throughput only if the engine gains from larger batches. It applies only while several flows ask
or have just asked.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

BATCH_SHARE = 1 / 16
"""Weight of the batch class relative to the interactive class: small, so that it yields, but not zero."""
BURST_STEPS = 4
"""Steps whose tokens an interactive flow may be behind."""
HELD_S = 1.0
"""Seconds in which a flow is expected to ask again, so that others do not fill the engine during its pauses."""


@dataclass(frozen=True, slots=True)
class Flow:
    """The requests of one client and class, which share the client's `weight`."""

    client: str
    weight: float = 1.0
    is_batch: bool = False

    @property
    def pace(self) -> float:
        """Tokens per unit of virtual time."""
        return self.weight * (BATCH_SHARE if self.is_batch else 1.0)


@dataclass(frozen=True, slots=True)
class Work:
    """A request, and the number of tokens that the next step would compute for it.

    Attributes:
        is_divisible: Whether the step may compute fewer of them, as for a prompt.
        waits: Whether it has no place in the batch yet. An engine computes requests with a place first.
    """

    request_id: str
    flow: Flow
    tokens: int
    is_divisible: bool = False
    waits: bool = False


@dataclass(frozen=True, slots=True)
class Shares:
    """The requests of a step.

    Attributes:
        request_ids: In the order in which they get the step's tokens.
        tokens: Maximum tokens that the step computes.
    """

    request_ids: tuple[str, ...]
    tokens: int


class StepShares:
    """Virtual times of one engine's flows. Times are seconds of any one clock.

    Args:
        step_tokens: Tokens of a shared step. A step computes more only for its first request: if that cannot be
            divided, or as far as its flow is behind.
    """

    def __init__(self, step_tokens: int) -> None:
        self._step_tokens = step_tokens
        self._now = 0.0  # the latest virtual time at which a step has begun to serve a flow
        self._times: dict[Flow, float] = {}
        self._open: Counter[Flow] = Counter()
        self._left_s: dict[Flow, float] = {}

    def enter(self, flow: Flow) -> None:
        """Record a new request of `flow`."""
        burst = 0 if flow.is_batch else BURST_STEPS * self._step_tokens / flow.pace
        self._times[flow] = max(self._times.get(flow, -inf), self._now - burst)
        self._left_s.pop(flow, None)
        self._open[flow] += 1

    def leave(self, flow: Flow, now_s: float) -> None:
        """Record the end of a request of `flow`."""
        self._open[flow] -= 1
        if not self._open[flow]:
            del self._open[flow]
            self._left_s[flow] = now_s

    def are_needed(self, now_s: float) -> bool:
        """Return whether more than one flow asks, or has just asked."""
        if len(self._open) > 1:
            return True
        for flow in [flow for flow, left_s in self._left_s.items() if now_s - left_s >= HELD_S]:
            del self._left_s[flow], self._times[flow]
        return len(self._open) + len(self._left_s) > 1

    def share(self, work: Iterable[Work], most: int) -> Shares:
        """Choose at most `most` requests for the next step; `work` is in order of arrival."""
        queues: dict[Flow, deque[Work]] = {}
        for each in work:
            queues.setdefault(each.flow, deque()).append(each)
        # At equal times the flow with fewer requests goes first, such as a flow that has just begun.
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
                continue  # its virtual time does not advance, so it comes first in a later step, whatever its size
            queues[flow].popleft()
            chosen.append(each)
            left -= each.tokens
            if queues[flow]:
                heappush(heap, (time + each.tokens / flow.pace, is_batch, requests, place, flow))
        self._now = max([self._now, *(self._times[each.flow] for each in chosen)])
        # A divided prompt would take the tokens of requests that the engine computes after it.
        if left < 0 and any(each.waits for each in chosen[:-1]):
            chosen.pop()
        return Shares(tuple(each.request_id for each in chosen), tokens)

    def charge(self, flow: Flow, tokens: int) -> None:
        """Charge `tokens` of a step to `flow`."""
        self._times[flow] += tokens / flow.pace
