"""A replica's replies, in which the ingress reads what a client's request used."""

import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any, get_args

from pydantic import BaseModel

from peagle.api.clients.request_charge import Charge, Usage
from peagle.api.relay import DONE, split_events

# A part of an event of vLLM's. Text cannot look so: JSON escapes a quote inside a string.
_USAGE = re.compile(r',"usage":(\{(?:[^{}]|\{[^{}]*\})*\})')
_INDEX = re.compile(r'"index":(\d+)')
_USAGE_ALONE = '"choices":[]'


async def metered(
    replies: AsyncGenerator[Any, None], body: Any, charge: Charge, begin: Callable[[], None], end: Callable[[], None]
) -> AsyncGenerator[Any, None]:
    """Pass a replica's replies on, and read in them what was used; take out what of that the client did not ask for.

    Args:
        replies: Of one try; closed at the end.
        body: The request as the client made it; `ask_for_usage` makes what is sent.
        charge: Gets `used`.
        begin: Called before the first reply is passed on, whatever it says.
        end: Called before the last one is, so that a client that has it may ask again.
    """
    options = getattr(body, "stream_options", None)
    wanted = bool(options and options.include_usage)
    each_wanted = wanted and bool(options and options.continuous_usage_stats)
    choices: dict[int, Usage] = {}
    async with aclosing(replies):
        async for reply in replies:
            begin()
            if isinstance(reply, BaseModel):
                usage = getattr(reply, "usage", None)
                charge.used = Usage.of(usage.model_dump()) if usage is not None else Usage()
                end()
                yield reply
                continue
            kept = []
            for event in split_events(reply):
                found = _USAGE.search(event)
                alone = found is not None and _USAGE_ALONE in event
                if found is not None:
                    _note(charge, choices, event, found.group(1), alone)
                if found is None or (wanted if alone else each_wanted):
                    kept.append(event)
                elif not alone:
                    kept.append(event[: found.start()] + event[found.end() :])
            if kept:
                if kept[-1].endswith(DONE):
                    end()
                yield kept


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
