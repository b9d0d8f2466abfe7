"""Defines a dispatch policy: filters exclude candidates, scorers add up a cost, a picker chooses."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from peagle.router.snapshot import ReplicaSnapshot, RouteRequest


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica as a decision sees it: its last report, and what this dispatcher knows beyond it.

    Attributes:
        replica_id: The replica.
        snapshot: Its last report; None before the first.
        is_current: Whether the report is fresh, and has rates if the policy needs them.
        open_requests: Open requests at the replica that this dispatcher sent.
        known_requests: Requests known to be there: reported, or sent by this dispatcher since, and not ended.
        requests: Estimate of all requests there, if the other dispatchers sent and ended as many as this one.
        queued_prompt_tokens: Prompt tokens to be prefilled before this request's.
        free_kv_tokens: Room in its KV cache; infinite if unknown.
        cached_tokens: Leading prompt tokens of this request that it most likely has cached.
    """

    replica_id: str
    snapshot: ReplicaSnapshot | None
    is_current: bool
    open_requests: int
    known_requests: int
    requests: int
    queued_prompt_tokens: float
    free_kv_tokens: float
    cached_tokens: int


class Exclusion(StrEnum):
    """Why a replica cannot take a request, in order from the likeliest to pass soon."""

    FULL = "full"
    DRAINING = "draining"
    TRIED = "tried"
    STALLED = "stalled"
    DEAD = "dead"


class RouteReason(StrEnum):
    """Why a replica was chosen, if not by the policy's own reason."""

    HOME = "home"
    LEAST_IN_FLIGHT = "least-in-flight"
    QUEUED = "queued"


class HomeUse(Enum):
    """How a policy uses the home of a request's prefix while the home may take more."""

    NONE = "none"
    WEIGHED = "weighed"
    """The home is one of the candidates."""
    FIRST = "first"
    """The home is chosen whatever the costs, unless only other candidates have room."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """One candidate's part in a decision: why it was excluded, or the terms of its cost."""

    replica_id: str
    cost: float
    terms: Mapping[str, float]
    excluded: Exclusion | None = None


Filter = Callable[[RouteRequest, Candidate], Exclusion | None]
"""Returns why the candidate cannot take the request, or None."""

Fit = Callable[[RouteRequest, Candidate], bool]
"""Returns whether the candidate could start the request without waiting for room."""

Scorer = Callable[[RouteRequest, Candidate], float]
"""Returns a cost of at least 0, in the unit at the end of the scorer's name; NaN and negative costs are infinite."""

Picker = Callable[[Sequence[Weighed]], Weighed]
"""Returns one of the candidates, of which there is at least one; they are in random order after the prefix's home."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A way to dispatch. Costs are summed, so all scorers of a set share one unit.

    Attributes:
        name: Its name in deployment files, measurements and reports.
        description: Which replica it takes, in a phrase.
        reason: Reason of a decision made by `scorers`.
        homes: How it uses the home of a request's prefix.
        needs_rates: Whether `scorers` predict times: then a report without rates is not current.
        filters: Exclude a candidate; the first to object gives the reason.
        fits: A candidate that fails one of these is chosen only if no candidate passes.
        scorers: Terms of the cost, by name, if all candidates' reports are current.
        fallback: Terms of the cost if any report is not current; must not read reports.
        picker: Chooses one of the weighed candidates.
        by_kind: Whether it uses the acceptance of earlier requests of the same kind, which replicas then record.
    """

    name: str
    description: str
    reason: str
    homes: HomeUse
    needs_rates: bool
    filters: tuple[Filter, ...]
    fits: tuple[Fit, ...]
    scorers: Mapping[str, Scorer]
    fallback: Mapping[str, Scorer]
    picker: Picker
    by_kind: bool = False

    @property
    def reasons(self) -> frozenset[str]:
        """Every reason that a route of this policy may have."""
        shared = set(RouteReason) - ({RouteReason.HOME} if self.homes is HomeUse.NONE else set())
        return frozenset({self.reason, *shared})

    def exclusion(self, request: RouteRequest, candidate: Candidate) -> Exclusion | None:
        for judge in self.filters:
            if (reason := judge(request, candidate)) is not None:
                return reason
        return None

    def has_room(self, request: RouteRequest, candidate: Candidate) -> bool:
        return all(fits(request, candidate) for fits in self.fits)

    def weigh(self, request: RouteRequest, candidate: Candidate, by_report: bool) -> Weighed:
        """Return the candidate with its cost, from `scorers` or `fallback`."""
        scorers = self.scorers if by_report else self.fallback
        terms = {name: _cost(scorer(request, candidate)) for name, scorer in scorers.items()}
        return Weighed(candidate.replica_id, sum(terms.values()), terms)


def _cost(value: float) -> float:
    return value if value >= 0 else math.inf
