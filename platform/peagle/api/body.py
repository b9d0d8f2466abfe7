"""From bytes to a validated request. Whatever is wrong with a body is the client's mistake, and is named."""

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

# A larger body is not parsed in the event loop that relays everybody's answers.
INLINE_BYTES = 2**16

# A union may have many branches; a message names a few.
MAX_REASONS = 3

# Of what is wrong with a body. A list of a million items may have so many millions of problems.
MAX_PROBLEMS = 1000

# What fits the engine's messages between its processes.
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

# Fields that would change the answer and that the engine ignores, where silence would be a wrong answer; and fields
# by which stages of a disaggregated deployment talk to each other, which no client may write.
UNSUPPORTED: Mapping[str, str] = {
    "audio": "this server produces text only",
    "best_of": "ask for n completions and choose among them",
    "ec_transfer_params": "it is internal to the platform",
    "function_call": "use tool_choice",
    "functions": "use tools",
    "kv_transfer_params": "it is internal to the platform",
    "suffix": "this server completes at the end only",
}
# What vLLM reads from `vllm_xargs`, where a client may write anything, and takes for its own.
INTERNAL_XARGS = (
    *("ec_transfer_params", "kv_cache_report_mode", "kv_transfer_params"),
    DEPTH_MAX_ARG,  # whose field is `speculation`
)


async def read_json(request: Request, settings: ApiSettings) -> dict[str, Any]:
    """Read the body, up to the limit, as one JSON object; raise what `read_request` does."""
    return await read_request(request, settings, dict)


async def read_request(request: Request, settings: ApiSettings, make: Callable[[dict[str, Any]], Made]) -> Made:
    """Read the body, up to the limit, as one JSON object, and make of it what `make` does.

    Both happen in a thread where the body is large, and other requests go on meanwhile.

    Raises:
        RequestError: It is too large, not JSON, not an object, or nested too deep; or `make` refuses it.
        HTTPException: 415 for another content type, 408 for a body that arrives too slowly.
    """
    raw = await read_body(request, settings)

    def parse() -> Made:
        return make(parse_object(raw, settings.max_json_depth))

    return parse() if len(raw) <= INLINE_BYTES else await asyncio.to_thread(parse)


async def read_body(request: Request, settings: ApiSettings) -> bytes:
    """Read the body, up to the limit, if it is said to be JSON; or take the one kept in `request.state.body`.

    Raises:
        TooLargeError: It is larger than that.
        HTTPException: 415 for another content type, 408 for a body that arrives too slowly.
    """
    if (kept := getattr(request.state, "body", None)) is not None:
        return bytes(kept)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    # Browsers send other types across origins without asking first; JSON they must ask for.
    if media_type != "application/json" and not media_type.endswith("+json"):
        sent = f"not {media_type}" if media_type else "and name it"
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
    """Parse a JSON object in UTF-8, nested at most `max_depth` deep, without NaN, lone surrogates or numbers too large.

    Raises RequestError where it is none; the message says where.
    """
    if (excess := holds_more(raw)) is not None:
        raise TooLargeError(f"The request body holds more than {excess}.", code="request_too_large")
    try:
        value = pydantic_core.from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise RequestError(f"The request body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise RequestError("The request body must be a JSON object.", code="invalid_json")
    _check(value, max_depth)
    return value


def _check(value: Any, max_depth: int) -> None:
    """Walk level by level: recursion would fail on exactly the bodies that this is for."""
    level: list[Any] = [value]
    items = 0
    for _ in range(max_depth):
        children: list[Any] = []
        for node in level:
            items += len(node)
            if items > MAX_ITEMS:
                raise TooLargeError(f"The request body holds more than {MAX_ITEMS} values.", code="request_too_large")
            for item in node.values() if isinstance(node, dict) else node:
                if isinstance(item, dict | list):
                    children.append(item)
                elif _is_too_large(item):
                    raise RequestError("The request body holds a number that is too large.", code="invalid_json")
        if not children:
            return
        level = children
    raise RequestError(f"The request body is nested deeper than {max_depth} levels.", code="invalid_json")


def _is_too_large(item: Any) -> bool:
    if isinstance(item, float):
        return not math.isfinite(item)
    return isinstance(item, int) and not INT64_MIN <= item <= INT64_MAX


def validate(model: type[T], data: dict[str, Any]) -> T:
    """Make a request of a parsed body.

    Raises RequestError where a field is missing, wrong or not supported; `param` names it.
    """
    for field, instead in UNSUPPORTED.items():
        # A best_of that equals n asks for nothing more.
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
        # The engine's validators run on raw values and trip over types that they do not expect.
        raise RequestError(f"A field of the request has a wrong type: {error}.") from None


def unroll_messages(body: Any, data: Mapping[str, Any]) -> Any:
    """Unroll pydantic's lazy lists in a chat made of `data`: they do not travel, and are checked only as they are read.

    Raises RequestError where a content part or a tool call is wrong; `param` names it.
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
    """Name the field of `data`, which lies at `place`, that came closest to being right.

    A union reports every branch that did not match.
    """
    if not place and (count := error.error_count()) > MAX_PROBLEMS:
        longest = max(data, key=lambda name: len(data[name]) if isinstance(data[name], list) else 0)
        return RequestError(f"{longest}: its values are of a wrong kind ({count} problems).", param=longest)
    listed = error.errors(include_url=False, include_context=False, include_input=False)
    problems = [((*place, *field_path(problem["loc"], data, problem["type"])), problem) for problem in listed]
    # In a branch of the right type the deepest complaint is the one that helps.
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
    """The part of a pydantic location that a client would recognise: names of union branches are left out."""
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
