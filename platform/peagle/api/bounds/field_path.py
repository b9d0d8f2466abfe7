"""Names of request fields, as the client wrote them."""

from collections.abc import Sequence

Path = tuple[str | int, ...]

# A property's name may be as long as a body.
MAX_SPELLED_CHARS = 200


def spell(path: Sequence[str | int]) -> str:
    """Return `("messages", 0, "content")` as `messages[0].content`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")
    return text if len(text) <= MAX_SPELLED_CHARS else text[: MAX_SPELLED_CHARS - 1] + "…"
