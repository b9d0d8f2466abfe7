"""When a grammar has become too slow to go on with. Imports no vllm.

A trial follows a grammar for a few tokens. Some become slow after hundreds: the more ways there are to read a text, the
more of them the next token has to be compared with.
"""

from collections.abc import Iterable

SLOW_GRAMMAR = "peagle: slow grammar"
"""The `stop_reason` of a request that an engine ended because its grammar had become slow."""

# Steps that are looked back on, and how many of them must have been slow: one alone may be the machine's fault.
RECENT, SLOW = 8, 2


def is_slow(token_s: Iterable[float], token_s_max: float) -> bool:
    """Whether a grammar has become slow.

    Args:
        token_s: Processor seconds for each token, in the last `RECENT` steps.
        token_s_max: Longest time that one token may take.
    """
    return sum(each > token_s_max for each in token_s) >= SLOW


def drafts_within(token_s: float, token_s_max: float) -> int:
    """How many drafts a step may check and take no longer than one token may; at least 1.

    Each has a mask of its own, beside that of the token after them. So a deep K holds up nobody longer than no drafts
    may, and whether a grammar is slow does not depend on K.
    """
    return max(1, int(token_s_max / max(token_s, 1e-6)) - 1)
