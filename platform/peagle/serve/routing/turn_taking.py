"""A Serve request router that gives places to several clients' waiting requests in turn."""

import asyncio
from typing import Any

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

from peagle.api.tries import tries_of
from peagle.router.fairness.place_turns import PlaceTurns
from peagle.router.fairness.step_sharing import Flow
from peagle.serve.routing.absence import Absence

ANYBODY = Flow("")
"""Flow of requests without an API key."""


class TurnTakingRouter(RequestRouter):  # type: ignore[misc]  # Ray ships no types
    """Orders the requests that wait for a replica, and bounds their wait while there is none.

    Serve keeps them in its own queue, with a few routing tasks that each look for a place for one request, with
    back-off. Here a task takes the request whose turn it is. While places are scarce, so that tasks have to retry, a
    place goes to the request whose turn it is when it is found. See `peagle.router.fairness.place_turns`.
    """

    def begin_turns(self, replica_wait_s: float | None) -> None:
        """Set how long requests wait without a replica; None waits forever. Called in Serve's `initialize_state`."""
        self._absence = Absence(replica_wait_s)
        self._turns = PlaceTurns()
        # The requests that wait, and those of them that a routing task has taken up.
        self._waiting: dict[str, PendingRequest] = {}
        self._taken_up: set[str] = set()

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        request_id = pending_request.metadata.internal_request_id
        charge = tries_of(pending_request.args).charge
        flow, tokens = (charge.flow, charge.tokens) if charge is not None else (ANYBODY, 0)
        self._turns.enter(request_id, flow, max(1, tokens), again=is_retry)
        self._waiting[request_id] = pending_request
        try:
            async with self._absence.bounded():
                return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        finally:
            self._turns.leave(request_id)
            del self._waiting[request_id]
            self._taken_up.discard(request_id)

    def _get_next_pending_request_to_route(self) -> PendingRequest | None:
        queue = self._pending_requests_to_route
        while queue and queue[0].future.done():
            queue.popleft()
        request_id = next((each for each in self._turns.in_order() if each not in self._taken_up), None)
        if request_id is None:
            queue.clear()
            return None
        self._taken_up.add(request_id)
        return self._waiting[request_id]

    def _fulfill_next_pending_request(self, replica: RunningReplica, request_metadata: Any = None) -> None:
        request_id = request_metadata.internal_request_id
        turn = request_id
        if self.num_routing_tasks_in_backoff:
            turn = next(self._turns.in_order(), request_id)
        if turn != request_id and self._hand_over(request_id, self._waiting[turn], replica):
            self._start_anew(request_id)
            request_id, request_metadata = turn, self._waiting[turn].metadata
        self._turns.admit(request_id)
        # Others of Serve's routers choose among requests here themselves.
        RequestRouter._fulfill_next_pending_request(self, replica, request_metadata)

    def _start_anew(self, request_id: str) -> None:
        """End the current task, which has found a place for this request: Serve replaces it.

        Otherwise it would continue with the same request, after a pause that grows with each found place.
        """
        self._taken_up.discard(request_id)
        if request_id in self._waiting:
            self._pending_requests_to_route.append(self._waiting[request_id])
        if (task := asyncio.current_task()) is not None:
            task.cancel()

    def _hand_over(self, found_for: str, pending: PendingRequest, replica: RunningReplica) -> bool:
        """Record that a place goes to `pending`, whose turn it is; return False if it must not."""
        return True
