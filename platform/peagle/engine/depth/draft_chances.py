"""Predicts whether each draft is accepted: from the drafter's confidence, or from its request's earlier drafts.

Imports no vllm.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from operator import mul

# Edges of the classes of the drafter's confidence. Most confident drafts lie near 1.
_EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
_MIDDLES = tuple((low + high) / 2 for low, high in zip((0.0, *_EDGES), (*_EDGES, 1.0), strict=True))
# A class starts as if this many drafts had been accepted as often as the drafter predicts, and holds this many at most.
_PRIOR_DRAFTS, _DRAFTS_MAX = 8.0, 1024.0
# Without confidence: initial rate of misses; misses that shrink a request's own rate towards the mean; and half-life of
# a request's own misses, in drafts.
_MISSES, _SHRUNK_MISSES, _FORGOTTEN_DRAFTS = 0.3, 2.0, 30.0


class DraftChances:
    """Learns acceptance from verified drafts.

    With confidence: the share of drafts accepted at this position and confidence, given that those before were.
    Without: each position has a rate of misses, which a request's own misses raise or lower (gamma-Poisson shrinkage of
    a frailty, as in survival analysis).
    """

    def __init__(self, depth_max: int) -> None:
        self._reached = [[_PRIOR_DRAFTS] * len(_MIDDLES) for _ in range(depth_max)]
        self._right = [[_PRIOR_DRAFTS * middle for middle in _MIDDLES] for _ in range(depth_max)]
        self._missed = [_PRIOR_DRAFTS * _MISSES] * depth_max
        self._exposed = [_PRIOR_DRAFTS] * depth_max
        # By request: its misses, and the number expected of a mean request.
        self._of_request: dict[str, tuple[float, float]] = {}

    def __len__(self) -> int:
        return len(self._of_request)

    def survival(self, request_id: str, length: int, confidence: Sequence[float] | None) -> list[float]:
        """Return the probability that the first j + 1 drafts are all accepted, at index j; `length` entries.

        Args:
            confidence: The drafter's probability of each drafted token; None if unknown.
        """
        if confidence is None:
            frailty = self._frailty(request_id)
            rates = zip(self._missed[:length], self._exposed, strict=False)
            each = [1.0 - min(1.0, frailty * missed / exposed) for missed, exposed in rates]
        else:
            each = []
            for position, sure in enumerate(confidence[:length]):
                at = bisect_right(_EDGES, sure)
                each.append(self._right[position][at] / self._reached[position][at])
        return list(accumulate(each, mul))

    def learn(self, request_id: str, confidence: Sequence[float] | None, first: int, end: int, right: int) -> None:
        """Learn from the drafts `first` to `end` (exclusive) of one request, of which the first `right` were accepted.

        Drafts behind a rejected one carry no information.
        """
        reached = range(first, min(end, right + 1))
        if confidence is None:
            self._learn_misses(request_id, reached, right)
            return
        for position, sure in zip(reached, confidence[first:], strict=False):
            at = bisect_right(_EDGES, sure)
            if self._reached[position][at] >= _DRAFTS_MAX:
                self._reached[position][at] /= 2.0
                self._right[position][at] /= 2.0
            self._reached[position][at] += 1.0
            self._right[position][at] += position < right

    def forget(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._of_request.pop(request_id, None)

    def _frailty(self, request_id: str) -> float:
        missed, expected = self._of_request.get(request_id, (0.0, 0.0))
        return (missed + _SHRUNK_MISSES) / (expected + _SHRUNK_MISSES)

    def _learn_misses(self, request_id: str, reached: range, right: int) -> None:
        frailty = self._frailty(request_id)
        missed, expected = self._of_request.get(request_id, (0.0, 0.0))
        for position in reached:
            wrong = position >= right
            expected += self._missed[position] / self._exposed[position]
            missed += wrong
            # Deep drafts come from requests that rarely miss, so they count with that request's rate.
            if self._exposed[position] >= _DRAFTS_MAX:
                self._exposed[position] /= 2.0
                self._missed[position] /= 2.0
            self._exposed[position] += frailty
            self._missed[position] += wrong
        kept = 0.5 ** (len(reached) / _FORGOTTEN_DRAFTS)
        self._of_request[request_id] = missed * kept, expected * kept
