"""Acceptance of drafts by kind of request: what to expect of a request before it starts.

Requests of one system prompt, or else of one client, are of one kind. The record learns one ratio for each kind: how
often a draft is accepted, given that those before it were. It does not depend on K, so kinds can be compared even if
replicas with different K served them.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

KINDS_MAX = 1024
"""Kinds remembered; beyond that, the kind that ended longest ago is forgotten."""
HALF_LIFE_S = 60.0
"""Half-life of the record. A kind served at K = 0 shows no drafts, so it soon becomes unknown and is tried again."""
DRAFTS_MIN, DRAFTS_MAX = 50.0, 4000.0
"""Fewer drafts are not enough evidence; more do not count, so that a kind that changes is followed."""
_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class EndedDrafts:
    """Ended requests of one kind: their drafts, the draft tokens verified, and those accepted."""

    kind: int
    drafts: int
    drafted: int
    accepted: int


@dataclass(slots=True)
class _Sums:
    drafts: float = 0.0
    drafted: float = 0.0
    accepted: float = 0.0
    at_s: float = 0.0

    def faded(self, now_s: float) -> "_Sums":
        kept = 0.5 ** (max(0.0, now_s - self.at_s) / HALF_LIFE_S) * min(1.0, DRAFTS_MAX / max(self.drafts, 1.0))
        return _Sums(self.drafts * kept, self.drafted * kept, self.accepted * kept, now_s)


@dataclass(slots=True)
class DraftRecord:
    """Sums over ended requests by kind. Times are seconds on one monotonic clock of the caller."""

    _kinds: dict[int, _Sums] = field(default_factory=dict)

    def add(self, ended: Iterable[EndedDrafts], now_s: float) -> None:
        for each in ended:
            sums = self._kinds.pop(each.kind, _Sums(at_s=now_s)).faded(now_s)
            sums.drafts += each.drafts
            sums.drafted += each.drafted
            sums.accepted += each.accepted
            self._kinds[each.kind] = sums
        while len(self._kinds) > KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]

    def known(self, now_s: float) -> dict[int, float]:
        """Return for each kind the ratio of accepted drafts, given that those before were; omit kinds with few."""
        faded = {kind: sums.faded(now_s) for kind, sums in self._kinds.items()}
        return {kind: _right_ratio(sums) for kind, sums in faded.items() if sums.drafts >= DRAFTS_MIN}


def tokens_expected(right_ratio: float, depth: float) -> float:
    """Return the tokens of a step with a draft of `depth`, including the target's own; linear between depths."""
    tokens, reached = 1.0, 1.0
    while depth > 0.0:
        reached *= right_ratio
        tokens += reached * min(depth, 1.0)
        depth -= 1.0
    return tokens


def _right_ratio(sums: _Sums) -> float:
    """Find by bisection the ratio at which drafts of their mean depth have as many accepted as observed."""
    depth, tokens = sums.drafted / sums.drafts, 1.0 + sums.accepted / sums.drafts
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if tokens_expected(middle, depth) < tokens else (low, middle)
    return low
