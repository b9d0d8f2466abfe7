"""Who gets a step's drafts: as many in all as K for each request would make, given to those likeliest to be right."""

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter

# Drafted beyond K for each request, so that there is a choice. On a CPU each is a row of the drafter, which costs
# nearly half of one to verify: two more bring most of what a whole draft would.
_DRAFTED_BEYOND = 2


def depth_drafted(depth: int, depth_max: int) -> int:
    """How deep a step drafts whose next one shares out K = `depth`, where drafting is not flat in K."""
    return min(depth + min(depth, _DRAFTED_BEYOND), depth_max)


def shared(chances: Sequence[Sequence[float]], drafts: int) -> list[int]:
    """How many of each request's drafts to verify: of all of them the `drafts` that are likeliest to be right.

    Args:
        chances: By request, the probability that its first j + 1 drafts are all right, at index j; never rises.
        drafts: To be verified in all; fewer where there are no more.
    """
    depths = [0] * len(chances)
    for _, request in _likeliest_first(chances)[:drafts]:
        depths[request] += 1
    return depths


def expected_right(chances: Sequence[Sequence[float]], depth: int, drafted: int) -> tuple[float, float]:
    """Drafts expected to be right where each request has K = `depth`, and where as many are shared out of `drafted`.

    Args:
        chances: As in `shared`.
    """
    equal = sum(sum(each[:depth]) for each in chances)
    best = _likeliest_first([each[:drafted] for each in chances])[: depth * len(chances)]
    return equal, sum(chance for chance, _ in best)


def _likeliest_first(chances: Sequence[Sequence[float]]) -> list[tuple[float, int]]:
    """Chance and request of each draft. Of drafts that are as likely, the earlier in its request's text comes first."""
    every = [(chance, request) for request, each in enumerate(chances) for chance in accumulate(each, min)]
    every.sort(key=itemgetter(0), reverse=True)
    return every
