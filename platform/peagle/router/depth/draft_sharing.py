"""Shares a step's drafts among its requests: K times the batch size in all, the likeliest drafts first."""

from collections.abc import Sequence
from itertools import accumulate
from operator import itemgetter

# Drafts beyond K for each request, so that there is a choice. On a CPU each is a row of the drafter, which costs almost
# half as much as a row to verify. Two more yield most of the gain of a full draft.
_DRAFTED_BEYOND = 2


def depth_drafted(depth: int, depth_max: int) -> int:
    """Return how deep to draft if the next step shares out K = `depth` and drafting is not flat in K."""
    return min(depth + min(depth, _DRAFTED_BEYOND), depth_max)


def shared(chances: Sequence[Sequence[float]], drafts: int) -> list[int]:
    """Return how many drafts of each request to verify, so that the `drafts` likeliest ones are verified.

    Args:
        chances: For each request, the probability that its first j + 1 drafts are all accepted, at index j; never
            rises with j.
        drafts: Drafts to verify in all; fewer if fewer exist.
    """
    depths = [0] * len(chances)
    for _, request in _likeliest_first(chances)[:drafts]:
        depths[request] += 1
    return depths


def expected_right(chances: Sequence[Sequence[float]], depth: int, drafted: int) -> tuple[float, float]:
    """Return the expected accepted drafts with K = `depth` for each request, and with as many shared out of `drafted`.

    Args:
        chances: As in `shared`.
    """
    equal = sum(sum(each[:depth]) for each in chances)
    best = _likeliest_first([each[:drafted] for each in chances])[: depth * len(chances)]
    return equal, sum(chance for chance, _ in best)


def _likeliest_first(chances: Sequence[Sequence[float]]) -> list[tuple[float, int]]:
    """List the chance and request of each draft. Among equal chances, a request's earlier draft comes first."""
    every = [(chance, request) for request, each in enumerate(chances) for chance in accumulate(each, min)]
    every.sort(key=itemgetter(0), reverse=True)
    return every
