"""Whom a request counts for."""

from dataclasses import astuple, dataclass
from enum import StrEnum

WEIGHT_MIN, WEIGHT_MAX = 0.01, 1000.0


class ClientClass(StrEnum):
    """What a client waits for its answers as: somebody does, or nobody."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that one client may ask for; None is no limit.

    Attributes:
        requests_per_minute: Requests admitted in a minute, on average; after a quiet minute so many at once.
        tokens_per_minute: Tokens of prompts and answers, in the same way.
        requests_at_once: Requests that are not answered to the end.
        tokens_waiting: Tokens expected of requests whose answer has not begun.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_at_once: int | None = None
    tokens_waiting: int | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in astuple(self))

    def share(self, count: int) -> "Limits":
        """The part of one of `count` processes that cannot ask each other; a limit is at least 1."""
        return Limits(*(None if limit is None else max(1, limit // count) for limit in astuple(self)))


@dataclass(frozen=True, slots=True)
class Client:
    """An API key's owner. `weight` is its share beside others', 1 for most."""

    name: str
    weight: float = 1.0
    class_: ClientClass = ClientClass.INTERACTIVE
    limits: Limits = Limits()
