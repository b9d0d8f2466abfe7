"""What a dispatch policy is: filters rule out, scorers add up a cost, a picker takes one."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, StrEnum

from peagle.router.snapshot import ReplicaSnapshot, RouteRequest


@dataclass(frozen=True, slots=True)
class Candidate:
    """One replica as a decision sees it: its last report, and what this dispatcher knows beyond it.

    Attributes:
        replica_id: Which.
        snapshot: Its last report; None before the first.
        is_current: Whether the report is fresh, and has rates where the policy needs them.
        open_requests: Open requests there that this dispatcher sent.
        known_requests: Requests there for all this dispatcher knows: reported or sent by it since, and not ended.
        requests: All requests there, where since the report the other dispatchers' have come and gone as its own.
        queued_prompt_tokens: Prompt tokens to be prefilled before this request's.
        free_kv_tokens: Room in its KV cache; infinite where that is not known.
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
    """Why a replica cannot take a request, from the most to the least likely to pass soon."""

    FULL = "full"
    DRAINING = "draining"
    TRIED = "tried"
    STALLED = "stalled"
    DEAD = "dead"


class RouteReason(StrEnum):
    """Why a replica was chosen, where it was not by the policy's own reason."""

    HOME = "home"
    LEAST_IN_FLIGHT = "least-in-flight"
    QUEUED = "queued"


class HomeUse(Enum):
    """What a policy makes of the home of a request's prefix, as long as the home may take more."""

    NONE = "none"
    WEIGHED = "weighed"
    """It is one of the candidates."""
    FIRST = "first"
    """It is taken, whatever the costs, unless only others have room."""


@dataclass(frozen=True, slots=True)
class Weighed:
    """One candidate's part in a decision: what it was ruled out for, or the terms that its cost is the sum of."""

    replica_id: str
    cost: float
    terms: Mapping[str, float]
    excluded: Exclusion | None = None


Filter = Callable[[RouteRequest, Candidate], Exclusion | None]
"""Returns why the candidate cannot take the request, or None."""

Fit = Callable[[RouteRequest, Candidate], bool]
"""Returns whether the candidate could start the request without waiting for room."""

Scorer = Callable[[RouteRequest, Candidate], float]
"""Returns a cost of at least 0, in the unit that the scorer's name ends in; NaN and less count as infinite."""

Picker = Callable[[Sequence[Weighed]], Weighed]
"""Returns one of at least one candidates, which come in random order behind the prefix's home."""


@dataclass(frozen=True, slots=True)
class Policy:
    """One way to dispatch. Costs are summed, so all scorers of a set share one unit.

    Attributes:
        name: Under which deployment files, measurements and reports know it.
        description: Which replica it takes, in a phrase.
        reason: What a decision by `scorers` says of itself.
        homes: What becomes of the home of a request's prefix.
        needs_rates: Whether `scorers` predict times: then a report without rates is not current.
        filters: Rule a candidate out; the first to object is the reason given.
        fits: A candidate that fails one is taken only where no other candidate is left.
        scorers: The cost, by name, of candidates whose reports are all current.
        fallback: The cost where one is not: it must not look at reports.
        picker: Takes one of the weighed candidates.
        by_kind: Whether it weighs what earlier requests of the same kind had accepted, which replicas then note.
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
        """Every reason that a route by this policy may have."""
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
        """Return the candidate with its cost, by `scorers` or by `fallback`."""
        scorers = self.scorers if by_report else self.fallback
        terms = {name: _cost(scorer(request, candidate)) for name, scorer in scorers.items()}
        return Weighed(candidate.replica_id, sum(terms.values()), terms)


def _cost(value: float) -> float:
    return value if value >= 0 else math.inf
