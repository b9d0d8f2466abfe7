"""Reads a request's token usage from a replica's replies."""

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, get_args

from pydantic import BaseModel

from peagle.api.clients.request_charge import Charge, Usage
from peagle.api.dialects.stream_kinds import COMPLETION, StreamKind
from peagle.api.relay import split_events

# Part of a vLLM event. Generated text cannot match: JSON escapes quotes inside a string.
_USAGE = re.compile(r',"usage":(\{(?:[^{}]|\{[^{}]*\})*\})')
_INDEX = re.compile(r'"index":(\d+)')
_USAGE_ALONE = '"choices":[]'
# Named events that report usage. The last of them reports the total.
_USAGE_EVENTS = ("event: response.completed\n", "event: message_start\n", "event: message_delta\n")


async def metered(
    replies: AsyncGenerator[Any, None],
    body: Any,
    charge: Charge,
    begin: Callable[[], None],
    end: Callable[[], None],
    kind: StreamKind = COMPLETION,
) -> AsyncGenerator[Any, None]:
    """Pass a replica's replies on and read their usage; remove usage that the client did not ask for.

    Args:
        replies: Replies of one try; closed at the end.
        body: The client's request; `ask_for_usage` makes the request that is sent.
        charge: Its `used` is set.
        begin: Called before the first reply is passed on, whatever its content.
        end: Called before the last reply is passed on, so that a client that received it may send again.
        kind: Format of the stream.
    """
    options = getattr(body, "stream_options", None)
    wanted = bool(options and options.include_usage)
    each_wanted = wanted and bool(options and options.continuous_usage_stats)
    choices: dict[int, Usage] = {}
    async with aclosing(replies):
        async for reply in replies:
            begin()
            if isinstance(reply, BaseModel | Mapping):
                plain = reply if isinstance(reply, Mapping) else reply.model_dump(include={"usage"})
                charge.used = Usage.of(plain.get("usage") or {})
                end()
                yield reply
                continue
            kept = []
            for event in split_events(reply):
                if event.startswith("event: "):
                    if event.startswith(_USAGE_EVENTS):
                        charge.used = _told(event)
                    kept.append(event)
                    continue
                found = _USAGE.search(event)
                alone = found is not None and _USAGE_ALONE in event
                if found is not None:
                    _note(charge, choices, event, found.group(1), alone)
                if found is None or (wanted if alone else each_wanted):
                    kept.append(event)
                elif not alone:
                    kept.append(event[: found.start()] + event[found.end() :])
            if kept:
                if kind.ends(kept[-1]):
                    end()
                yield kept


def _told(event: str) -> Usage:
    """Return the usage so far from a named event."""
    data = json.loads(event.partition("data: ")[2])
    answer = data.get("response") or data.get("message") or data
    return Usage.of(answer.get("usage") or {})


def _note(charge: Charge, choices: dict[int, Usage], event: str, usage: str, whole: bool) -> None:
    """Record a stream's usage so far: of one choice, or at the end of all choices."""
    counts = Usage.of(json.loads(usage))
    if whole:
        charge.used = counts
        return
    index = _INDEX.search(event)
    choices[int(index.group(1)) if index else 0] = counts
    charge.used = Usage(prompt=counts.prompt, output=sum(each.output for each in choices.values()))


def ask_for_usage(body: Any) -> Any:
    """Return the request to send for a client's `body`, with usage in every event in case the client disconnects."""
    field = type(body).model_fields.get("stream_options")
    if field is None or not getattr(body, "stream", False):
        return body
    options = get_args(field.annotation)[0]  # vLLM moves this class between modules
    return body.model_copy(update={"stream_options": options(include_usage=True, continuous_usage_stats=True)})
