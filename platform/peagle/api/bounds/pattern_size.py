"""Size of a regular expression, or of a grammar rule's right side, with repetitions written out."""

import re
from collections.abc import Iterator

from peagle.api.api_settings import GrammarSettings

# In this order: escape, character class, count, group start with its kind or group end, any other character.
_TOKEN = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{(\d*)(,?)(\d*)\}|([()])(?:(?<=\()\?)?|[\s\S]", re.DOTALL)
# Python refuses to parse a number of thousands of digits.
_MANY = 10**18


def pattern_sizes(text: str, bounds: GrammarSettings) -> Iterator[tuple[int, int, str]]:
    """Yield each measured size with its limit and its name.

    An invalid regular expression is measured as far as it can be read: the engine refuses it.
    """
    # For each open group, outermost first: its parts so far, and the parts of its last element.
    open_groups: list[tuple[int, int]] = [(0, 0)]
    for token in _TOKEN.finditer(text):
        least, _, most, bracket = token.groups()
        parts, last = open_groups[-1]
        if bracket == "(":
            open_groups.append((0, 0))
            yield len(open_groups) - 1, bounds.max_depth, "levels of nested groups"
        elif bracket == ")":
            if len(open_groups) == 1:
                continue
            open_groups.pop()
            outer, _ = open_groups[-1]
            open_groups[-1] = (outer + parts, parts)
        elif least or most:
            count = max(_number(least), _number(most))
            yield count, bounds.max_repetitions, "repetitions"
            open_groups[-1] = (parts + last * max(0, count - 1), last * count)
        else:
            open_groups[-1] = (parts + 1, 1)
        yield open_groups[-1][0], bounds.max_expanded, "parts with each repetition written out"


def optional_parts(text: str) -> int:
    """Count the optional parts of a regular expression."""
    return sum(
        token.group() in ("?", "*") or (token.group()[0] == "{" and len(token.group()) > 2 and not _number(token[1]))
        for token in _TOKEN.finditer(text)
    )


def _number(digits: str | None) -> int:
    if not digits:
        return 0
    return int(digits) if len(digits) < 18 else _MANY
