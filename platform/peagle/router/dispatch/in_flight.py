"""Requests sent by one dispatcher: the part of a replica's load that its last report cannot show yet."""

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from peagle.router.snapshot import RouteRequest

# A request sent less than this before a report may have arrived after it, in seconds.
ARRIVAL_S = 0.05
# Prefixes remembered for each replica; beyond that, its cache has most likely dropped the oldest.
PREFIXES_REMEMBERED = 256
# How long ends are remembered: longer than any report is believed.
ENDS_REMEMBERED_S = 5.0


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A request in transit or being answered, with its prefill work and KV cache use."""

    replica_id: str
    sent_at_s: float
    prompt_tokens: int
    kv_tokens: int


@dataclass(slots=True)
class Sent:
    """Requests sent to one replica, compared with its last report.

    Attributes:
        open_requests: Number of open requests.
        unseen: Open requests not in the report, by id, in the order in which they were sent.
        unseen_kv_tokens: Their KV cache use in all.
        ended_requests: Requests in the report that have certainly ended since.
        prefixes: Prefixes of requests sent there lately, the latest last.
    """

    open_requests: int = 0
    unseen: dict[str, OpenRequest] = field(default_factory=dict)
    unseen_kv_tokens: int = 0
    ended_requests: int = 0
    prefixes: dict[int, None] = field(default_factory=dict)


_NOTHING = Sent()


class InFlight:
    """One dispatcher's open requests. Times are on the dispatcher's own clock."""

    def __init__(self) -> None:
        self._open: dict[str, dict[str, OpenRequest]] = {}
        self._where: dict[str, str] = {}
        self._sent: dict[str, Sent] = {}
        # When requests were sent and when they ended, for those that ended lately.
        self._ends: dict[str, deque[tuple[float, float]]] = {}
        self._reported_at_s: dict[str, float] = {}

    @property
    def open_requests(self) -> int:
        return len(self._where)

    def to(self, replica_id: str) -> Sent:
        """Return the requests sent to `replica_id`, read-only."""
        return self._sent.get(replica_id, _NOTHING)

    def where(self, request_id: str) -> str | None:
        """Return the replica that has an open request."""
        return self._where.get(request_id)

    def started(self, request: RouteRequest, replica_id: str, now_s: float) -> None:
        """Record that `request` goes to `replica_id`, instead of an earlier replica if it is already open."""
        self.forgotten(request.request_id)
        sent = self._sent.setdefault(replica_id, Sent())
        cached = _remember(sent.prefixes, request)
        new = OpenRequest(
            replica_id, now_s, request.prompt_tokens - cached, request.prompt_tokens + request.output_tokens
        )
        self._open.setdefault(replica_id, {})[request.request_id] = new
        self._where[request.request_id] = replica_id
        sent.open_requests += 1
        self._see(sent, request.request_id, new)

    def forgotten(self, request_id: str) -> None:
        """Record that a request was not sent after all, or goes elsewhere; an unknown id changes nothing."""
        self._drop(request_id, None)

    def ended(self, request_id: str, now_s: float, at: str | None = None) -> None:
        """Record that a request has ended, however it ended; an unknown id changes nothing.

        With `at`, only if it is open there: the end of a failed attempt may arrive after the next has begun.
        """
        if (over := self._drop(request_id, at)) is not None:
            ends = self._ends.setdefault(over.replica_id, deque())
            ends.append((over.sent_at_s, now_s))
            while ends[0][1] < now_s - ENDS_REMEMBERED_S:
                ends.popleft()
            self._count_ends(over.replica_id)

    def reported(self, replica_id: str, taken_at_s: float) -> None:
        """Compare with a report taken at `taken_at_s` from now on; the same report again changes nothing."""
        self._reported_at_s[replica_id] = taken_at_s
        sent = self._sent.get(replica_id)
        if sent is None:
            return
        sent.unseen.clear()
        sent.unseen_kv_tokens = 0
        for request_id, request in self._open.get(replica_id, {}).items():
            self._see(sent, request_id, request)
        self._count_ends(replica_id)

    def retain(self, replica_ids: Collection[str]) -> None:
        """Forget every replica except `replica_ids`, with its open requests."""
        for replica_id in self._sent.keys() - replica_ids:
            del self._sent[replica_id]
            self._ends.pop(replica_id, None)
            for request_id in self._open.pop(replica_id):
                del self._where[request_id]
        for replica_id in self._reported_at_s.keys() - replica_ids:
            del self._reported_at_s[replica_id]

    def _drop(self, request_id: str, at: str | None) -> OpenRequest | None:
        replica_id = self._where.get(request_id)
        if replica_id is None or at not in (None, replica_id):
            return None
        del self._where[request_id]
        dropped = self._open[replica_id].pop(request_id)
        sent = self._sent[replica_id]
        sent.open_requests -= 1
        if sent.unseen.pop(request_id, None) is not None:
            sent.unseen_kv_tokens -= dropped.kv_tokens
        return dropped

    def _count_ends(self, replica_id: str) -> None:
        at_s = self._reported_at_s.get(replica_id, float("inf"))
        # A request that ended as the report was taken may already be missing from it.
        self._sent[replica_id].ended_requests = sum(
            sent_at_s <= at_s - ARRIVAL_S and ended_at_s > at_s + ARRIVAL_S
            for sent_at_s, ended_at_s in self._ends.get(replica_id, ())
        )

    def _see(self, sent: Sent, request_id: str, request: OpenRequest) -> None:
        if request.sent_at_s > self._reported_at_s.get(request.replica_id, float("-inf")) - ARRIVAL_S:
            sent.unseen[request_id] = request
            sent.unseen_kv_tokens += request.kv_tokens


def _remember(prefixes: dict[int, None], request: RouteRequest) -> int:
    """Store the prefix as the latest; return how many prompt tokens it saves at that replica."""
    if request.affinity_key is None:
        return 0
    known = request.affinity_key in prefixes
    prefixes.pop(request.affinity_key, None)
    prefixes[request.affinity_key] = None
    if len(prefixes) > PREFIXES_REMEMBERED:
        del prefixes[next(iter(prefixes))]
    return min(request.prefix_tokens, request.prompt_tokens) if known else 0
