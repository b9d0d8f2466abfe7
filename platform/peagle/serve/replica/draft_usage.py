"""What was drafted for a request and how much of that was right, in the `usage` of its answer.

vLLM tells it beside `usage`, and of single answers only; this is the sum over all answers and prompts of a request. The
names are the request's own `speculation`, not OpenAI's `accepted_prediction_tokens`: those are of a client's predicted
outputs, and the rejected ones are billed.
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
# Where events have names, those that tell usage.
_USAGE_EVENTS = ("event: response.completed\n", "event: message_delta\n")


@dataclass(slots=True)
class DraftCounts:
    """Tokens drafted and verified for one request, and those that the target accepted; None before any are known.

    `drafts` is in how many drafts.
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


_COUNTS: ContextVar[DraftCounts] = ContextVar("draft counts of the request that is being asked")

DRAFTED: ContextVar[Callable[[DraftCounts], None] | None] = ContextVar(
    "who is told of a request's drafts", default=None
)
"""Set in the context in which the request is asked; called when its reply is over."""


def count_drafts(generate: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
    """Wrap an engine client's `generate`: what it is asked for by the request that `tell_drafts` relays is counted."""

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
    """Relay an engine's replies to one request, whole or events of a stream, with draft counts in their `usage`."""
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
    # That of /v1/responses holds the whole answer.
    _add(event.get("response", event), counts)
    # As compact as vLLM writes it: others look for what is in it.
    return f"{head}data: {json.dumps(event, ensure_ascii=False, separators=(',', ':'))}\n\n"


def _add(answer: dict[str, Any], counts: DraftCounts) -> None:
    if answer.get("usage"):
        answer["usage"][FIELD] = counts.plain()
