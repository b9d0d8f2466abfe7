"""How often drafts were right for requests of the same kind: what is expected of a request before it starts.

Requests of one system prompt, or else of one client, are of a kind. What is learned is one ratio for each kind: how
often a draft is right where those before it were. It does not depend on K, so that kinds can be compared that were
served by replicas of different K.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

KINDS_MAX = 1024
"""Kinds remembered; past that, the one that ended longest ago is forgotten."""
HALF_LIFE_S = 60.0
"""Forgotten over this time. A kind that is served at K = 0 shows no drafts, so it is soon unknown and tried anew."""
DRAFTS_MIN, DRAFTS_MAX = 50.0, 4000.0
"""Fewer drafts tell nothing; more count no more, so that a kind that changes is followed."""
_HALVINGS = 20


@dataclass(frozen=True, slots=True)
class EndedDrafts:
    """Requests of one kind that ended: their drafts, the tokens of these that were verified, and those accepted."""

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
    """What ended requests tell of their kinds. Times are seconds on one monotonic clock of the caller's."""

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
        """By kind, how often a draft is right where those before it were; little known kinds are left out."""
        faded = {kind: sums.faded(now_s) for kind, sums in self._kinds.items()}
        return {kind: _right_ratio(sums) for kind, sums in faded.items() if sums.drafts >= DRAFTS_MIN}


def tokens_expected(right_ratio: float, depth: float) -> float:
    """Tokens of a step with a draft of `depth`, the target's own included; between two depths they follow a line."""
    tokens, reached = 1.0, 1.0
    while depth > 0.0:
        reached *= right_ratio
        tokens += reached * min(depth, 1.0)
        depth -= 1.0
    return tokens


def _right_ratio(sums: _Sums) -> float:
    """The ratio with which drafts of their mean depth would have as many accepted, halving by halving."""
    depth, tokens = sums.drafted / sums.drafts, 1.0 + sums.accepted / sums.drafts
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if tokens_expected(middle, depth) < tokens else (low, middle)
    return low
