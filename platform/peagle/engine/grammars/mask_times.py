"""Decides when a grammar has become too slow to continue. Imports no vllm.

A trial follows a grammar for a few tokens only. Some become slow after hundreds: the more ways there are to parse the
text, the more of them must be compared with the next token.
"""

from collections.abc import Iterable

SLOW_GRAMMAR = "peagle: slow grammar"
"""The `stop_reason` of a request that the engine ended because its grammar had become slow."""

# Recent steps considered, and how many must be slow: a single slow step may come from the machine.
RECENT, SLOW = 8, 2


def is_slow(token_s: Iterable[float], token_s_max: float) -> bool:
    """Return whether a grammar has become slow.

    Args:
        token_s: Processor seconds for each token, in the last `RECENT` steps.
        token_s_max: Longest time that one token may take.
    """
    return sum(each > token_s_max for each in token_s) >= SLOW


def drafts_within(token_s: float, token_s_max: float) -> int:
    """Return how many drafts a step may verify within the time limit of one token; at least 1.

    Each draft and the token after them needs its own mask. So a deep K delays others no longer than one token may, and
    whether a grammar is slow does not depend on K.
    """
    return max(1, int(token_s_max / max(token_s, 1e-6)) - 1)
