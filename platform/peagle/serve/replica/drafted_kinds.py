"""Collects draft counts of finished requests by kind, for the next report."""

from collections import deque
from functools import partial
from typing import Any

from peagle.router.dispatch import EndedDrafts
from peagle.router.fairness.step_sharing import Flow
from peagle.serve.replica.draft_usage import DRAFTED, DraftCounts
from peagle.serve.routing.route_request import request_kinds

ENDED_MAX = 512
"""Most requests kept for the next report; the oldest are dropped if no report is made."""


class DraftedKinds:
    """Draft counts collected until they are taken."""

    def __init__(self) -> None:
        self._ended: deque[EndedDrafts] = deque(maxlen=ENDED_MAX)

    def listen(self, body: Any, flow: Flow | None) -> None:
        """Record the request of this context when its reply has ended."""
        DRAFTED.set(partial(self._note, body, flow.client if flow is not None else ""))

    def take(self) -> tuple[EndedDrafts, ...]:
        taken = tuple(self._ended)
        self._ended.clear()
        return taken

    def _note(self, body: Any, client: str, counts: DraftCounts) -> None:
        for kind in request_kinds(body, client):
            self._ended.append(EndedDrafts(kind, counts.drafts, counts.drafted or 0, counts.accepted))
