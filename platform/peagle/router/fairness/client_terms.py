"""The client of a request, with its weight, class and limits."""

from dataclasses import astuple, dataclass
from enum import StrEnum

WEIGHT_MIN, WEIGHT_MAX = 0.01, 1000.0


class ClientClass(StrEnum):
    """Whether a person waits for a client's answers, or a batch job."""

    INTERACTIVE = "interactive"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one client; None for no limit.

    Attributes:
        requests_per_minute: Requests admitted per minute on average; after an idle minute, as many at once.
        tokens_per_minute: Tokens of prompts and answers, in the same way.
        requests_at_once: Requests that have not been answered completely.
        tokens_waiting: Expected tokens of requests whose answer has not begun.
    """

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    requests_at_once: int | None = None
    tokens_waiting: int | None = None

    def __bool__(self) -> bool:
        return any(limit is not None for limit in astuple(self))

    def share(self, count: int) -> "Limits":
        """Return one process's share of the limits if `count` processes cannot coordinate; each is at least 1."""
        return Limits(*(None if limit is None else max(1, limit // count) for limit in astuple(self)))


@dataclass(frozen=True, slots=True)
class Client:
    """The owner of an API key. `weight` is its share relative to other clients, usually 1."""

    name: str
    weight: float = 1.0
    class_: ClientClass = ClientClass.INTERACTIVE
    limits: Limits = Limits()
