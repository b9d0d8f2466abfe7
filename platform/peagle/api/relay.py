"""A replica's answer, as one JSON body or as server-sent events.

Only the engine's own last event counts as a finished stream: one that ends without it ends with an error event, so
nothing is silently cut short.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from pydantic import BaseModel
from ray.exceptions import RayActorError
from ray.llm._internal.serve.core.configs.openai_api_models import ErrorResponse
from starlette.responses import StreamingResponse
from starlette.types import Send
from vllm.exceptions import GenerationError

from peagle.api.dialects.stream_kinds import COMPLETION, DONE, StreamKind
from peagle.api.openai_errors import Asked, EngineError, cause_of, describe, from_engine
from peagle.api.reply import ERROR_EVENT, NAMED_ERROR_EVENT
from peagle.errors import PeagleError, ReplicaLostError

logger = logging.getLogger(__name__)

# How long after its call a request may be cancelled itself.
CANCELLED_S = 0.2
# What an engine's request that failed without a word is taken to say.
_NO_ANSWER = {"code": 500, "message": "The engine gave no answer."}

# In which a replica that has answered ends the call by itself.
_END_S = 1.0


class EventStream(StreamingResponse):
    """Server-sent events that are closed, and with them the request behind them, however the response ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        # Proxies such as nginx hold a stream back unless told otherwise.
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self._events.aclose()


def split_events(reply: Any) -> list[str]:
    """The events in one reply of a replica, which may batch several."""
    return [reply] if isinstance(reply, str) else list(reply)


def engine_error(event: str, asked: Asked) -> EngineError | None:
    """The error that an event carries, if it carries one."""
    if not event.startswith((ERROR_EVENT, NAMED_ERROR_EVENT)):
        return None
    payload = json.loads(event.removeprefix(NAMED_ERROR_EVENT).removeprefix("data: "))
    info: Mapping[str, Any] = payload["error"]
    return from_engine(info, asked)


async def replies_of(response: Any, timeout_s: float) -> AsyncGenerator[Any, None]:
    """A replica's replies, each within `timeout_s`; however this ends early, the request is cancelled there."""
    finished = False
    try:
        while not finished:
            async with asyncio.timeout(timeout_s):
                try:
                    reply = await anext(response)
                except StopAsyncIteration:
                    finished = True
                    return
                except asyncio.CancelledError:
                    if (task := asyncio.current_task()) is None or task.cancelling():
                        raise
                    # Not this request was cancelled, but its call. Where its client has left, Serve may end that
                    # before this; else dispatch has found the replica's node gone.
                    await asyncio.sleep(CANCELLED_S)
                    raise RayActorError from None
            yield reply
    finally:
        if not finished:
            response.cancel()


async def first_reply(
    rest: AsyncGenerator[Any, None], asked: Asked, preamble: int = 0, kind: StreamKind = COMPLETION
) -> BaseModel | dict[str, Any] | list[str]:
    """The only reply, or a stream's events up to its first token. Raises PeagleError where there is neither."""
    events: list[str] = []
    spoken = 0
    async for reply in rest:
        for part in [reply] if isinstance(reply, BaseModel | dict) else split_events(reply):
            if isinstance(part, ErrorResponse):
                raise from_engine(part.error.model_dump(), asked)
            if isinstance(part, BaseModel | dict):
                return part
            error = engine_error(part, asked)
            if error is not None:
                raise error
            if part == DONE and spoken <= preamble:
                # vLLM ends a stream so where a request failed in the engine before its first token.
                raise from_engine(_NO_ANSWER, asked)
            events.append(part)
            spoken += kind.speaks(part)
        if spoken > preamble:
            return events
    if not events:
        raise ReplicaLostError("The replica ended without an answer.")
    return events


def final_error(error: Exception, asked: Asked, retry_after_s: float) -> PeagleError:
    """The error to answer with, for good."""
    if isinstance(error, PeagleError):
        return error
    if isinstance(cause_of(error), GenerationError):
        return from_engine(_NO_ANSWER, asked)
    reply = describe(error, retry_after_s)
    if reply.status >= 500:  # An overload is none of these, and has no time for tracebacks.
        logger.warning("A replica gave no answer.", exc_info=error)
    return EngineError(reply)


async def relay(
    first: list[str],
    rest: AsyncGenerator[Any, None],
    asked: Asked,
    retry_after_s: float,
    failed: Callable[[], None] | None = None,
    kind: StreamKind = COMPLETION,
) -> AsyncGenerator[str, None]:
    """Pass events on up to the last of a whole answer; an error becomes the last event.

    Args:
        first: Events that were read already, none of which is an error.
        rest: Further replies; it is closed at the end, which aborts the request if it still runs.
        asked: What an error may be about.
        retry_after_s: See `describe`.
        failed: Called before an error is sent, which the status that was sent before does not tell.
        kind: How the stream is written.
    """
    try:
        events = first
        while True:
            packet, error = _until_error(events, asked)
            if packet:
                yield packet
            if error is not None:
                if failed is not None:
                    failed()
                yield kind.error_event(error.reply)
                return
            if events and kind.ends(events[-1]):
                await finish(rest)
                return
            try:
                events = split_events(await anext(rest))
            except StopAsyncIteration:
                raise ReplicaLostError("The replica ended before its answer was complete.") from None
    except Exception as error:
        logger.warning("A stream ended with an error.", exc_info=error)
        if failed is not None:
            failed()
        yield kind.error_event(describe(error, retry_after_s))
    finally:
        await rest.aclose()


async def finish(rest: AsyncGenerator[Any, None]) -> None:
    """Let an answered request end by itself; closed before that, it would be cancelled, and count as such there.

    The answer is whole: a replica that is lost or silent now takes nothing from it.
    """
    try:
        async with asyncio.timeout(_END_S):
            await anext(rest, None)
    except Exception as error:
        logger.warning("A replica did not end a request that it had answered.", exc_info=error)
    finally:
        await rest.aclose()


def _until_error(events: list[str], asked: Asked) -> tuple[str, EngineError | None]:
    for index, event in enumerate(events):
        error = engine_error(event, asked)
        if error is not None:
            return "".join(events[:index]), error
    return "".join(events), None
