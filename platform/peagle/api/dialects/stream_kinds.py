"""How the stream of a route is written: what carries a part of an answer, what ends it, and what tells of an error.

A replica writes an error into any of them as vLLM does into a chat, `data: {"error": ...}`; the ingress translates it.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from peagle.api.dialects.anthropic_errors import anthropic_error
from peagle.api.reply import ERROR_EVENT, NAMED_ERROR_EVENT, ErrorReply

DONE = "data: [DONE]\n\n"
# What opens a stream before the first token.
_OPENING_RESPONSE = ("event: response.created\n", "event: response.in_progress\n")
_OPENING_MESSAGE = ("event: message_start\n", "event: ping\n")


@dataclass(frozen=True, slots=True)
class StreamKind:
    """One way to write a stream.

    Attributes:
        speaks: Whether an event carries a part of an answer, be it empty; an end, an error and usage alone do not.
        last: How the event that ends a whole answer begins.
        error_event: An error as the last event of a stream whose status is already sent.
    """

    speaks: Callable[[str], bool]
    last: str
    error_event: Callable[[ErrorReply], str]

    def ends(self, event: str) -> bool:
        """Whether a whole answer ends with this event."""
        return event.startswith(self.last)


def has_choices(event: str) -> bool:
    """Whether an event of a chat or a completion carries a part of an answer."""
    return event.startswith("data: {") and not event.startswith(ERROR_EVENT) and '"choices":[]' not in event


def _has_output(event: str) -> bool:
    return event.startswith("event: response.") and not event.startswith(_OPENING_RESPONSE)


def _has_content(event: str) -> bool:
    return event.startswith("event: ") and not event.startswith((*_OPENING_MESSAGE, NAMED_ERROR_EVENT))


def _response_error(reply: ErrorReply) -> str:
    # OpenAI's event has the fields beside `type`; its clients raise only where there is an `error`.
    body = {"type": "error", "code": reply.code, "message": reply.message, "param": reply.param, **reply.body()}
    return f"{NAMED_ERROR_EVENT}data: {json.dumps(body)}\n\n"


def _message_error(reply: ErrorReply) -> str:
    return f"{NAMED_ERROR_EVENT}data: {json.dumps(anthropic_error(reply.status, reply.message))}\n\n"


COMPLETION = StreamKind(has_choices, DONE, ErrorReply.event)
RESPONSE = StreamKind(_has_output, "event: response.completed\n", _response_error)
MESSAGE = StreamKind(_has_content, "event: message_stop\n", _message_error)


def kind_at(path: str) -> StreamKind:
    """How the route at `path`, with any prefix before it, writes its stream."""
    path = path.rstrip("/")
    if path.endswith("/v1/messages"):
        return MESSAGE
    return RESPONSE if path.endswith("/v1/responses") else COMPLETION


def is_whole(packet: bytes) -> bool:
    """Whether a packet of events, of whichever kind, ends a whole answer."""
    # JSON escapes line breaks, so that what an answer says cannot be taken for an event's name.
    return packet.endswith(_DONE) or any(last in packet for last in _NAMED_LAST)


_DONE = DONE.encode()
_NAMED_LAST = (RESPONSE.last.encode(), MESSAGE.last.encode())
