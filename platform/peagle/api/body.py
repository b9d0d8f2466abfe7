"""Bytes to a validated request. Every defect of a body is a client error that names the field."""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pydantic_core
from pydantic import BaseModel, ValidationError
from ray.llm._internal.common.errors import VLLM_CLIENT_ERRORS
from starlette.exceptions import HTTPException
from starlette.requests import Request

from peagle.api.api_settings import ApiSettings
from peagle.api.bounds.field_path import Path, spell
from peagle.api.bounds.json_text import MAX_ITEMS, holds_more
from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG
from peagle.api.dialects.engine_words import in_our_words
from peagle.errors import RequestError, TooLargeError

T = TypeVar("T", bound=BaseModel)
Made = TypeVar("Made")

# A larger body is not parsed in the event loop, which relays all answers.
INLINE_BYTES = 2**16

# A union may have many branches; a message names only the first few.
MAX_REASONS = 3

# Longest error message. A list of a million items may have as many problems.
MAX_PROBLEMS = 1000

# Largest integer that fits the messages between the engine's processes.
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Fields that would change the answer but that the engine ignores silently; and fields for communication between the
# stages of a disaggregated deployment, which clients must not set.
UNSUPPORTED: Mapping[str, str] = {
    "audio": "this server generates text only",
    "best_of": "request n completions and choose among them",
    "ec_transfer_params": "it is internal to the platform",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "kv_transfer_params": "it is internal to the platform",
    "suffix": "this server completes only at the end of a prompt",
}
# Keys of `vllm_xargs`, where a client may write anything, that vLLM takes for its own.
INTERNAL_XARGS = (
    *("ec_transfer_params", "kv_cache_report_mode", "kv_transfer_params"),
    DEPTH_MAX_ARG,  # clients set it with the field `speculation`
)


async def read_json(request: Request, settings: ApiSettings) -> dict[str, Any]:
    """Read the body, up to the limit, as one JSON object. Raises as `read_request` does."""
    return await read_request(request, settings, dict)


async def read_request(request: Request, settings: ApiSettings, make: Callable[[dict[str, Any]], Made]) -> Made:
    """Read the body, up to the limit, as one JSON object, and pass it to `make`.

    For a large body both run in a thread, so that other requests are not blocked.

    Raises:
        RequestError: It is too large, not JSON, not an object, or nested too deep; or `make` refuses it.
        HTTPException: 415 for another content type, 408 for a body that arrives too slowly.
    """
    raw = await read_body(request, settings)

    def parse() -> Made:
        return make(parse_object(raw, settings.max_json_depth))

    return parse() if len(raw) <= INLINE_BYTES else await asyncio.to_thread(parse)


async def read_body(request: Request, settings: ApiSettings) -> bytes:
    """Read a JSON body, up to the limit, or return the body kept in `request.state.body`.

    Raises:
        TooLargeError: It is larger than the limit.
        HTTPException: 415 for another content type, 408 for a body that arrives too slowly.
    """
    if (kept := getattr(request.state, "body", None)) is not None:
        return bytes(kept)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Browsers send other content types across origins without a preflight request; JSON requires one.
    if media_type != "application/json" and not media_type.endswith("+json"):
        sent = f"not {media_type}" if media_type else "and declare it"
        raise HTTPException(415, f"Send a JSON body, {sent}: add the header Content-Type: application/json.")
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            return await _read(request, settings.max_body_bytes)
    except TimeoutError:
        raise HTTPException(408, f"The body did not arrive within {settings.body_timeout_s:g} seconds.") from None


async def _read(request: Request, limit: int) -> bytes:
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > limit:
        raise _too_large(limit)
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > limit:
            raise _too_large(limit)
    return bytes(raw)


def _too_large(limit: int) -> TooLargeError:
    return TooLargeError(f"The request body is larger than {limit} bytes.", code="request_too_large")


def parse_object(raw: bytes, max_depth: int) -> dict[str, Any]:
    """Parse a JSON object in UTF-8, nested at most `max_depth` deep, without NaN, lone surrogates or oversized numbers.

    Raises RequestError if it is invalid; the message says where.
    """
    if (excess := holds_more(raw)) is not None:
        raise TooLargeError(f"The request body has more than {excess}.", code="request_too_large")
    try:
        value = pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("The request body must be a JSON object.", code="invalid_json")
    _check(value, max_depth)
    return value


def _check(value: Any, max_depth: int) -> None:
    """Check values level by level: recursion would fail on the deeply nested bodies that this has to refuse."""
    level: list[Any] = [value]
    items = 0
    for _ in range(max_depth):
        children: list[Any] = []
        for node in level:
            items += len(node)
            if items > MAX_ITEMS:
                raise TooLargeError(f"The request body has more than {MAX_ITEMS} values.", code="request_too_large")
            for item in node.values() if isinstance(node, dict) else node:
                if isinstance(item, dict | list):
                    children.append(item)
                elif _is_too_large(item):
                    raise RequestError("The request body contains a number that is too large.", code="invalid_json")
        if not children:
            return
        level = children
    raise RequestError(f"The request body is nested deeper than {max_depth} levels.", code="invalid_json")


def _is_too_large(item: Any) -> bool:
    if isinstance(item, float):
        return not math.isfinite(item)
    return isinstance(item, int) and not INT64_MIN <= item <= INT64_MAX


def validate(model: type[T], data: dict[str, Any]) -> T:
    """Make a request from a parsed body.

    Raises RequestError if a field is missing, invalid or not supported; `param` names it.
    """
    for field, instead in UNSUPPORTED.items():
        # A best_of equal to n has no effect.
        if data.get(field) and not (field == "best_of" and data[field] == (data.get("n") or 1)):
            raise RequestError(f"{field} is not supported: {instead}.", param=field, code="unsupported_parameter")
    if isinstance(extra := data.get("vllm_xargs"), dict):
        for name in INTERNAL_XARGS:
            if name in extra:
                problem = f"vllm_xargs.{name} is not supported: it is internal to the platform."
                raise RequestError(problem, param=f"vllm_xargs.{name}", code="unsupported_parameter")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise explain(error, data) from None
    except VLLM_CLIENT_ERRORS as error:
        raise RequestError(in_our_words(str(error)), param=getattr(error, "parameter", None)) from None
    except Exception as error:
        # The engine's validators run on raw values and fail on unexpected types.
        raise RequestError(f"A field of the request has a wrong type: {error}.") from None


def unroll_messages(body: Any, data: Mapping[str, Any]) -> Any:
    """Unroll pydantic's lazy lists in a chat made from `data`: they do not pickle, and are validated only when read.

    Raises RequestError if a content part or a tool call is invalid; `param` names it.
    """
    for index, message in enumerate(body.messages):
        for field in ("content", "tool_calls"):
            parts = message.get(field)
            if parts is None or isinstance(parts, str):
                continue
            given, place = data["messages"][index][field], ("messages", index, field)
            try:
                message[field] = list(parts)
            except ValidationError as error:
                raise explain(error, given, place) from None
    return body


def explain(error: ValidationError, data: Any, place: Path = ()) -> RequestError:
    """Return an error that names the field of `data`, located at `place`, that came closest to being valid.

    A union reports every branch that did not match.
    """
    if not place and (count := error.error_count()) > MAX_PROBLEMS:
        longest = max(data, key=lambda name: len(data[name]) if isinstance(data[name], list) else 0)
        return RequestError(f"{longest}: its values have the wrong type ({count} problems).", param=longest)
    listed = error.errors(include_url=False, include_context=False, include_input=False)
    problems = [((*place, *field_path(problem["loc"], data, problem["type"])), problem) for problem in listed]
    # In a branch of the right type, the deepest error is the most useful one.
    path, problem = max(problems, key=lambda item: (len(item[0]), not item[1]["type"].endswith("_type")))
    param = spell(path) or None
    if problem["type"] == "missing":
        return RequestError(f"{param} is required.", param=param, code="missing_required_parameter")
    where = param or spell(problem["loc"])
    reasons = dict.fromkeys(
        other["msg"].removeprefix("Value error, ")
        for place, other in problems
        if place == path and other["type"] == problem["type"]
    )
    message = "; or ".join(list(reasons)[:MAX_REASONS])
    return RequestError(f"{where}: {message}." if where else f"{message}.", param=param)


def field_path(location: Sequence[str | int], data: Any, kind: str) -> tuple[str | int, ...]:
    """Return the part of a pydantic location that a client would recognise, without names of union branches."""
    path: list[str | int] = []
    for index, part in enumerate(location):
        known = isinstance(data, dict) and part in data
        known = known or (isinstance(data, list) and isinstance(part, int) and 0 <= part < len(data))
        if known:
            path.append(part)
            data = data[part]
        elif kind == "missing" and index == len(location) - 1:
            path.append(part)
    return tuple(path)
