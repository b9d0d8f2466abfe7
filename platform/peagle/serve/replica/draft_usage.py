"""Adds a request's drafted and accepted tokens to the `usage` of its answer.

vLLM reports them outside `usage`, and only per answer; this is the sum over all answers and prompts of a request. The
field is `speculation`, as in requests, not OpenAI's `accepted_prediction_tokens`: those count a client's predicted
outputs, whose rejected tokens are billed.
"""

import functools
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from peagle.api.bounds.speculation_field import FIELD

_USAGE_ALONE = '"choices":[]'
# Named events that report usage.
_USAGE_EVENTS = ("event: response.completed\n", "event: message_delta\n")


@dataclass(slots=True)
class DraftCounts:
    """Draft tokens verified and accepted for one request; None before any are known.

    `drafts` is the number of drafts.
    """

    drafted: int | None = None
    accepted: int = 0
    drafts: int = 0

    def add(self, output: Any) -> None:
        """Add vLLM's counts of one request output, which come with the last part of each answer."""
        for completion in output.outputs:
            if (counts := completion.spec_decode_metrics) is not None:
                self.drafted = (self.drafted or 0) + counts.num_draft_tokens
                self.drafts += sum(counts.histogram)
                self.accepted += sum(right * steps for right, steps in enumerate(counts.histogram))

    def plain(self) -> dict[str, Any]:
        return {"drafted_tokens": self.drafted, "accepted_tokens": self.accepted}


_COUNTS: ContextVar[DraftCounts] = ContextVar("draft counts of the current request")

DRAFTED: ContextVar[Callable[[DraftCounts], None] | None] = ContextVar(
    "listener for a request's draft counts", default=None
)
"""Callback set in the request's context; called when its reply has ended."""


def count_drafts(generate: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
    """Wrap an engine client's `generate` to count the drafts of the request that `tell_drafts` relays."""

    @functools.wraps(generate)
    def counted(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        outputs, counts = generate(*args, **kwargs), _COUNTS.get(None)
        return outputs if counts is None else _count(outputs, counts)

    return counted


async def _count(outputs: AsyncGenerator[Any, None], counts: DraftCounts) -> AsyncGenerator[Any, None]:
    async with aclosing(outputs):
        async for output in outputs:
            counts.add(output)
            yield output


async def tell_drafts(replies: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Relay an engine's replies to one request, complete or as a stream, with draft counts in their `usage`."""
    counts, drafted = DraftCounts(), DRAFTED.get()
    _COUNTS.set(counts)
    try:
        async with aclosing(replies):
            async for reply in replies:
                yield reply if counts.drafted is None else _told(reply, counts)
    finally:
        if drafted is not None and counts.drafts:
            drafted(counts)


def _told(reply: Any, counts: DraftCounts) -> Any:
    if isinstance(reply, dict):
        _add(reply, counts)
        return reply
    if not isinstance(reply, str):
        if (usage := getattr(reply, "usage", None)) is not None:
            setattr(usage, FIELD, counts.plain())
        return reply
    head, mark, data = reply.partition("data: {")
    if not mark or not (_USAGE_ALONE in data if not head else head.startswith(_USAGE_EVENTS)):
        return reply
    event = json.loads("{" + data)
    # The event of /v1/responses contains the whole answer.
    _add(event.get("response", event), counts)
    # As compact as vLLM writes it, because other code searches the text.
    return f"{head}data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _add(answer: dict[str, Any], counts: DraftCounts) -> None:
    if answer.get("usage"):
        answer["usage"][FIELD] = counts.plain()
