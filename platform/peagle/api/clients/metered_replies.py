"""A replica's replies, in which the ingress reads what a client's request used."""

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, get_args

from pydantic import BaseModel

from peagle.api.clients.request_charge import Charge, Usage
from peagle.api.dialects.stream_kinds import COMPLETION, StreamKind
from peagle.api.relay import split_events

# A part of an event of vLLM's. Text cannot look so: JSON escapes a quote inside a string.
_USAGE = re.compile(r',"usage":(\{(?:[^{}]|\{[^{}]*\})*\})')
_INDEX = re.compile(r'"index":(\d+)')
_USAGE_ALONE = '"choices":[]'
# Where events have names, those that tell what was used. The last of them tells of all.
_USAGE_EVENTS = ("event: response.completed\n", "event: message_start\n", "event: message_delta\n")


async def metered(
    replies: AsyncGenerator[Any, None],
    body: Any,
    charge: Charge,
    begin: Callable[[], None],
    end: Callable[[], None],
    kind: StreamKind = COMPLETION,
) -> AsyncGenerator[Any, None]:
    """Pass a replica's replies on, and read in them what was used; take out what of that the client did not ask for.

    Args:
        replies: Of one try; closed at the end.
        body: The request as the client made it; `ask_for_usage` makes what is sent.
        charge: Gets `used`.
        begin: Called before the first reply is passed on, whatever it says.
        end: Called before the last one is, so that a client that has it may ask again.
        kind: How a stream is written.
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
    """What an event with a name says was used so far."""
    data = json.loads(event.partition("data: ")[2])
    answer = data.get("response") or data.get("message") or data
    return Usage.of(answer.get("usage") or {})


def _note(charge: Charge, choices: dict[int, Usage], event: str, usage: str, whole: bool) -> None:
    """Take what a stream used so far: of one choice, or at its end of all."""
    counts = Usage.of(json.loads(usage))
    if whole:
        charge.used = counts
        return
    index = _INDEX.search(event)
    choices[int(index.group(1)) if index else 0] = counts
    charge.used = Usage(prompt=counts.prompt, output=sum(each.output for each in choices.values()))


def ask_for_usage(body: Any) -> Any:
    """The request to send for a client's `body`: each event of a stream says what was used, in case nobody reads on."""
    field = type(body).model_fields.get("stream_options")
    if field is None or not getattr(body, "stream", False):
        return body
    options = get_args(field.annotation)[0]  # vLLM moves the class about
    return body.model_copy(update={"stream_options": options(include_usage=True, continuous_usage_stats=True)})
