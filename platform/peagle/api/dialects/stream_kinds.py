"""Stream formats of the routes: content events, the end event, and error events.

A replica writes errors in all of them as vLLM does in a chat, `data: {"error": ...}`; the ingress translates them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass

from peagle.api.dialects.anthropic_errors import anthropic_error
from peagle.api.reply import ERROR_EVENT, NAMED_ERROR_EVENT, ErrorReply

DONE = "data: [DONE]\n\n"
# Events that open a stream before the first token.
_OPENING_RESPONSE = ("event: response.created\n", "event: response.in_progress\n")
_OPENING_MESSAGE = ("event: message_start\n", "event: ping\n")


@dataclass(frozen=True, slots=True)
class StreamKind:
    """One stream format.

    Attributes:
        speaks: Whether an event carries part of an answer, even an empty one; end, error and usage events do not.
        last: Prefix of the event that ends a complete answer.
        error_event: Writes an error as the last event of a stream whose status was already sent.
    """

    speaks: Callable[[str], bool]
    last: str
    error_event: Callable[[ErrorReply], str]

    def ends(self, event: str) -> bool:
        """Whether this event ends a complete answer."""
        return event.startswith(self.last)


def has_choices(event: str) -> bool:
    """Whether an event of a chat or a completion carries part of an answer."""
    return event.startswith("data: {") and not event.startswith(ERROR_EVENT) and '"choices":[]' not in event


def _has_output(event: str) -> bool:
    return event.startswith("event: response.") and not event.startswith(_OPENING_RESPONSE)


def _has_content(event: str) -> bool:
    return event.startswith("event: ") and not event.startswith((*_OPENING_MESSAGE, NAMED_ERROR_EVENT))


def _response_error(reply: ErrorReply) -> str:
    # OpenAI's event has the fields next to `type`; its clients raise only if there is an `error`.
    body = {"type": "error", "code": reply.code, "message": reply.message, "param": reply.param, **reply.body()}
    return f"{NAMED_ERROR_EVENT}data: {json.dumps(body)}\n\n"


def _message_error(reply: ErrorReply) -> str:
    return f"{NAMED_ERROR_EVENT}data: {json.dumps(anthropic_error(reply.status, reply.message))}\n\n"


COMPLETION = StreamKind(has_choices, DONE, ErrorReply.event)
RESPONSE = StreamKind(_has_output, "event: response.completed\n", _response_error)
MESSAGE = StreamKind(_has_content, "event: message_stop\n", _message_error)


def kind_at(path: str) -> StreamKind:
    """Return the stream format of the route at `path`, with or without a prefix."""
    path = path.rstrip("/")
    if path.endswith("/v1/messages"):
        return MESSAGE
    return RESPONSE if path.endswith("/v1/responses") else COMPLETION


def is_whole(packet: bytes) -> bool:
    """Whether a packet of events, of any format, ends a complete answer."""
    # JSON escapes line breaks, so that generated text cannot be mistaken for an event's name.
    return packet.endswith(_DONE) or any(last in packet for last in _NAMED_LAST)


_DONE = DONE.encode()
_NAMED_LAST = (RESPONSE.last.encode(), MESSAGE.last.encode())
