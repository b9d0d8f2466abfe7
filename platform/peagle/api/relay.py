"""A replica's answer, as one JSON body or as server-sent events.

Only the engine's last event completes a stream. A stream that stops without it ends with an error event, so that no
answer is truncated silently.
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

# How long after its call a request itself may be cancelled.
CANCELLED_S = 0.2
# Error of an engine's request that failed without a message.
_NO_ANSWER = {"code": 500, "message": "The engine gave no answer."}

# Time in which a replica that has answered ends the call by itself.
_END_S = 1.0


class EventStream(StreamingResponse):
    """Server-sent events that close their request, however the response ends."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[str, None]) -> None:
        # Proxies such as nginx buffer a stream unless told otherwise.
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        finally:
            await self._events.aclose()


def split_events(reply: Any) -> list[str]:
    """Return the events in one reply of a replica, which may batch several."""
    return [reply] if isinstance(reply, str) else list(reply)


def engine_error(event: str, asked: Asked) -> EngineError | None:
    """Return the error in an event, if there is one."""
    if not event.startswith((ERROR_EVENT, NAMED_ERROR_EVENT)):
        return None
    payload = json.loads(event.removeprefix(NAMED_ERROR_EVENT).removeprefix("data: "))
    info: Mapping[str, Any] = payload["error"]
    return from_engine(info, asked)


async def replies_of(response: Any, timeout_s: float) -> AsyncGenerator[Any, None]:
    """Yield a replica's replies, each within `timeout_s`; ending early cancels the request on the replica."""
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
                    # The call was cancelled, not this request. Serve may do that first when the client disconnects;
                    # otherwise dispatch found that the replica's node was lost.
                    await asyncio.sleep(CANCELLED_S)
                    raise RayActorError from None
            yield reply
    finally:
        if not finished:
            response.cancel()


async def first_reply(
    rest: AsyncGenerator[Any, None], asked: Asked, preamble: int = 0, kind: StreamKind = COMPLETION
) -> BaseModel | dict[str, Any] | list[str]:
    """Return the only reply, or a stream's events up to its first token. Raises PeagleError if there is neither."""
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
                # vLLM ends a stream like this if a request failed in the engine before its first token.
                raise from_engine(_NO_ANSWER, asked)
            events.append(part)
            spoken += kind.speaks(part)
        if spoken > preamble:
            return events
    if not events:
        raise ReplicaLostError("The replica ended without an answer.")
    return events


def final_error(error: Exception, asked: Asked, retry_after_s: float) -> PeagleError:
    """Return the final error to answer with."""
    if isinstance(error, PeagleError):
        return error
    if isinstance(cause_of(error), GenerationError):
        return from_engine(_NO_ANSWER, asked)
    reply = describe(error, retry_after_s)
    if reply.status >= 500:  # Not for an overload, in which tracebacks would cost too much time.
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
    """Pass events on up to the last event of a complete answer; an error becomes the last event.

    Args:
        first: Events that were already read, none of which is an error.
        rest: Further replies; closed at the end, which aborts the request if it is still running.
        asked: Fields that an error may refer to.
        retry_after_s: See `describe`.
        failed: Called before an error is sent, because the status was already sent.
        kind: Format of the stream.
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
    """Let an answered request end by itself; closing it earlier would count it as cancelled on the replica.

    The answer is complete: losing the replica now does not affect it.
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
