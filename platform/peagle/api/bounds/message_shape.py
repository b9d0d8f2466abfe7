"""The shape of messages. For a malformed message, pydantic alone would list what each kind of message lacks."""

from collections.abc import Mapping
from reprlib import repr as shortened
from typing import Any

from peagle.api.bounds.field_path import Path, spell
from peagle.errors import RequestError

# Types that vLLM accepts in a message's content, and as input items of a response.
PART_TYPES = (
    *("text", "image_url", "input_audio", "audio_url", "video_url", "refusal", "thinking", "tool_reference"),
    *("input_text", "input_image", "output_text", "image_pil"),
    *("prompt_embeds", "image_embeds", "audio_embeds", "video_embeds"),
)
ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
# Roles whose messages have content; an assistant's message may consist of tool calls alone.
_SPEAKING = ("developer", "system", "tool", "user")


def check_messages(data: Mapping[str, Any]) -> None:
    """Refuse malformed messages of a chat or items of a response's input.

    Raises RequestError for a malformed message; `param` names the field at fault.
    """
    for field in ("messages", "input"):
        turns = data.get(field)
        for index, turn in enumerate(turns if isinstance(turns, list) else ()):
            place: Path = (field, index)
            if not isinstance(turn, dict):
                raise _wrong(place, "an object", turn)
            kind = turn.get("type", "message") if field == "input" else "message"
            if kind not in ITEM_TYPES:
                raise _unknown((*place, "type"), kind, ITEM_TYPES)
            if kind == "message":
                _check_message(turn, place)


def _check_message(message: Mapping[str, Any], place: Path) -> None:
    role, content = message.get("role", ""), message.get("content")
    if not isinstance(role, str):
        raise _wrong((*place, "role"), "a string such as user", role)
    if not isinstance(content, str | list) and (content is not None or ("content" in message and role in _SPEAKING)):
        raise _wrong((*place, "content"), "text or a list of content parts", content)
    for index, part in enumerate(content if isinstance(content, list) else ()):
        _check_part(part, (*place, "content", index))
    calls = message.get("tool_calls")
    if calls is not None and not isinstance(calls, list):
        raise _wrong((*place, "tool_calls"), "a list of tool calls", calls)
    for index, call in enumerate(calls or ()):
        function, where = call.get("function") if isinstance(call, dict) else None, (*place, "tool_calls", index)
        if not isinstance(function, dict):
            raise _wrong((*where, "function"), "an object with name and arguments", function)
        for name in ("name", "arguments"):
            if not isinstance(function.get(name), str):
                raise _wrong((*where, "function", name), "text", function.get(name))


def _check_part(part: Any, place: Path) -> None:
    if isinstance(part, str):
        return
    if not isinstance(part, dict):
        raise _wrong(place, "text or an object with a type", part)
    kind = part.get("type")
    if kind is not None and kind not in PART_TYPES:
        raise _unknown((*place, "type"), kind, PART_TYPES)
    if kind == "text" and not isinstance(part.get("text"), str):
        raise _wrong((*place, "text"), "text", part.get("text"))


def _wrong(place: Path, wanted: str, found: Any) -> RequestError:
    shown = "null" if found is None else shortened(found)
    return RequestError(f"{spell(place)}: must be {wanted}, not {shown}.", param=spell(place))


def _unknown(place: Path, found: Any, known: tuple[str, ...]) -> RequestError:
    return RequestError(f"{spell(place)}: {shortened(found)} is not known; use {', '.join(known)}.", param=spell(place))
