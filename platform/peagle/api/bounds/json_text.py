"""Sizes of JSON text before parsing: a parser blocks its whole process until it is done."""

import re

# As many as the longest prompts have tokens; each item costs time in the process that relays all answers.
MAX_ITEMS = 2**20
# Keys, arrays and objects; each costs a parser ten times as much as a number.
MAX_NODES = 2**17

_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_STRING_OR_BRACKET = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


def holds_more(raw: bytes) -> str | None:
    """Return the limit that a JSON text exceeds, if any; the contents of strings do not count."""
    items, nodes = _counts(raw)
    if items < MAX_ITEMS and nodes <= MAX_NODES:
        return None
    items = nodes = end = 0
    for match in _STRING.finditer(raw):
        more = _counts(raw[end : match.start()])
        items, nodes, end = items + more[0], nodes + more[1], match.end()
        if items >= MAX_ITEMS or nodes > MAX_NODES:
            break
    else:
        more = _counts(raw[end:])
        items, nodes = items + more[0], nodes + more[1]
    if items >= MAX_ITEMS:
        return f"{MAX_ITEMS} values"
    return f"{MAX_NODES} keys, arrays and objects" if nodes > MAX_NODES else None


def _counts(raw: bytes) -> tuple[int, int]:
    return raw.count(b","), raw.count(b":") + raw.count(b"[") + raw.count(b"{")


def is_nested_deeper(text: str, most: int) -> bool:
    """Whether arrays and objects of a JSON text are nested deeper than `most` levels."""
    if text.count("[") + text.count("{") <= most:
        return False
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        mark = match.group()
        if mark in ("[", "{"):
            depth += 1
            if depth > most:
                return True
        elif mark in ("]", "}"):
            depth -= 1
    return False
