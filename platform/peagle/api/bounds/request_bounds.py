"""Size limits of one request, checked over plain values before they are validated, rendered or tokenized.

Long work here, in a replica's front end or in its tokenizer delays the answers to all other requests.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from peagle.api.api_settings import ApiSettings
from peagle.api.bounds.field_path import Path, spell
from peagle.api.bounds.grammar_bounds import check_grammars
from peagle.api.bounds.json_text import is_nested_deeper
from peagle.errors import RequestError

# Usual text has 4 characters per token; deeply indented code has 10.
CHARS_PER_TOKEN = 16
# Also for small models: a client may tokenize a long prompt in order to truncate it.
PROMPT_CHARS_MIN = 2**18
# For a model whose deployment leaves the context length to the checkpoint.
CONTEXT_TOKENS = 2**18

# More than the largest vocabularies have tokens.
MAX_LISTED = 2**18
# The engine's front end tokenizes them, twice, in the event loop that sends all tokens.
MAX_BAD_WORD_CHARS = 2**14
# For a list of this many wrong values, pydantic reports many times as many problems.
MIXED_VALUES_MAX = 1000

TOO_MANY, TOO_LONG = "array_above_max_length", "context_length_exceeded"
# Fields that are prompts, or that templates write into a prompt.
_PROMPTS = (
    *("prompt", "messages", "input", "previous_input_messages", "instructions", "system"),
    *("tools", "documents", "chat_template", "chat_template_kwargs", "tokens"),
)
# Fields that hold turns, and fields of a turn that are lists.
_TURNS, _PARTS = ("messages", "input", "previous_input_messages"), ("content", "tool_calls", "output", "summary")
# Fields of a content part that describe an image or audio, not text.
MEDIA_FIELDS = frozenset(
    {
        *("audio_embeds", "audio_url", "file", "image_embeds", "image_pil", "image_url", "input_audio", "video_url"),
        *("file_data", "source"),
    }
)
# Arguments of a tool call, in which any key may hold text.
_ARGUMENTS = "input"


def check_request(data: Mapping[str, Any], settings: ApiSettings, context_tokens: int | None) -> None:
    """Refuse a request that exceeds `settings`; values of wrong types are left to validation.

    Args:
        data: A body of any route that takes a prompt.
        settings: The limits.
        context_tokens: The model's maximum context length, if known.

    Raises:
        RequestError: A limit is exceeded; `param` names the field as the client wrote it.
    """
    _check_lists(data, settings)
    for field in ("prompt", "tokens"):
        check_values(data.get(field), (field,))
    _check_answers(data, settings.max_answers)
    _check_prompt(data, prompt_chars_most(settings, context_tokens))
    for path, text in _json_texts(data):
        if is_nested_deeper(text, settings.max_json_depth):
            message = f"is a JSON text nested deeper than {settings.max_json_depth} levels"
            raise RequestError(f"{spell(path)} {message}.", param=spell(path), code="invalid_json")
    check_grammars(data, settings.grammar)


def prompt_chars_most(settings: ApiSettings, context_tokens: int | None) -> int:
    """Return the most characters that a prompt may have."""
    return settings.max_prompt_chars or max(PROMPT_CHARS_MIN, CHARS_PER_TOKEN * (context_tokens or CONTEXT_TOKENS))


def _check_lists(data: Mapping[str, Any], settings: ApiSettings) -> None:
    for field, value in data.items():
        if field not in ("prompt", "tokens") and isinstance(value, list | dict):
            counts = {**dict.fromkeys(_TURNS, settings.max_messages), "tools": settings.max_tools}
            _check_length(len(value), counts.get(field, MAX_LISTED), field, field)
    chars = sum(len(word) for word in _listed(data.get("bad_words")) if isinstance(word, str))
    _check_length(chars, MAX_BAD_WORD_CHARS, "bad_words", "characters")
    parts = 0
    for field in _TURNS:
        for index, turn in enumerate(_listed(data.get(field))):
            for path, held in _part_lists(turn, (field, index)):
                parts += len(held)
                _check_length(parts, settings.max_content_parts, spell(path), "content parts and tool calls")
    tools = len(_listed(data.get("tools")))
    for index, tool in enumerate(_listed(data.get("tools"))):
        if isinstance(tool, dict) and isinstance(grouped := tool.get("tools"), list):
            tools += len(grouped)
            _check_length(tools, settings.max_tools, spell(("tools", index, "tools")), "tools")


def _part_lists(turn: Any, path: Path) -> Iterator[tuple[Path, list[Any]]]:
    """Yield the lists of parts in a turn, including those in a tool's result."""
    for name in _PARTS if isinstance(turn, dict) else ():
        if isinstance(held := turn.get(name), list):
            yield (*path, name), held
            for index, part in enumerate(held):
                if isinstance(part, dict) and isinstance(inner := part.get("content"), list):
                    yield (*path, name, index, "content"), inner


def _check_length(found: int, most: int, param: str, noun: str) -> None:
    if found > most:
        raise RequestError(f"{param}: {found} {noun}; at most {most} are allowed.", param=param, code=TOO_MANY)


def check_values(values: Any, path: Path) -> None:
    """Refuse a long list of mixed values or negative token ids, naming its first invalid value."""
    if not isinstance(values, list) or not values:
        return
    kind: type[Any] = type(values[0])
    if kind is list:
        for index, each in enumerate(values[:MIXED_VALUES_MAX]):
            check_values(each, (*path, index))
    if len(values) <= MIXED_VALUES_MAX:
        return
    if kind in (int, str, list) and {*map(type, values)} == {kind} and (kind is not int or min(values) >= 0):
        return
    wrong = next(i for i, value in enumerate(values) if type(value) not in (int, str, list) or _differs(value, kind))
    place = spell((*path, wrong))
    raise RequestError(f"{place}: neither a token id nor of the same type as the first value of the list.", param=place)


def _differs(value: Any, kind: type[Any]) -> bool:
    return type(value) is not kind or (isinstance(value, int) and value < 0)


def _check_answers(data: Mapping[str, Any], most: int) -> None:
    prompt, n = data.get("prompt"), data.get("n")
    prompts = len(prompt) if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else 1
    n = n if isinstance(n, int) else 1
    if prompts > most:
        raise RequestError(
            f"prompt: {prompts} prompts; at most {most} are allowed in one request.", param="prompt", code=TOO_MANY
        )
    if n * prompts > most:
        each = f" for each of {prompts} prompts" if prompts > 1 else ""
        raise RequestError(
            f"n: {n} answers{each}; at most {most} are allowed in one request.",
            param="n",
            code="integer_above_max_value",
        )


def _check_prompt(data: Mapping[str, Any], most: int) -> None:
    chars = 0
    for field in _PROMPTS:
        chars += count_chars(data.get(field), MEDIA_FIELDS if field in _TURNS else frozenset())
        if chars > most:
            message = f"{field}: the prompt has {chars} characters, of which a token id counts as one"
            raise RequestError(f"{message}; at most {most} are allowed here.", param=field, code=TOO_LONG)


def count_chars(value: Any, skipped: frozenset[str] = frozenset()) -> int:
    """Count the characters of all texts in a value, except under `skipped` keys; a number counts as one."""
    nothing: frozenset[str] = frozenset()
    chars, left = 0, [(value, skipped)]
    while left:
        node, skips = left.pop()
        if isinstance(node, str) or (isinstance(node, list) and {*map(type, node)} <= {int, float}):
            chars += len(node)
        elif isinstance(node, list):
            left += ((each, skips) for each in node)
        elif isinstance(node, dict):
            left += ((each, nothing if key == _ARGUMENTS else skips) for key, each in node.items() if key not in skips)
        else:
            chars += node is not None
    return chars


def _json_texts(data: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Yield every text of a body, except grammars, that an engine parses as JSON."""
    for index, item in enumerate(_listed(data.get("input"))):
        if isinstance(item, dict) and isinstance(text := item.get("arguments"), str):
            yield ("input", index, "arguments"), text
    for index, message in enumerate(_listed(data.get("messages"))):
        if not isinstance(message, dict):
            continue
        place: Path = ("messages", index)
        calls: list[tuple[Path, Any]] = [
            ((*place, "tool_calls", number, "function"), call.get("function"))
            for number, call in enumerate(_listed(message.get("tool_calls")))
            if isinstance(call, dict)
        ]
        calls.append(((*place, "function_call"), message.get("function_call")))
        for path, function in calls:
            if isinstance(function, dict) and isinstance(text := function.get("arguments"), str):
                yield (*path, "arguments"), text


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
