"""Size limits of embedding and scoring requests, checked before validation, as for other requests."""

from collections.abc import Mapping
from typing import Any

from peagle.api.api_settings import ApiSettings
from peagle.api.bounds.request_bounds import (
    MAX_LISTED,
    TOO_LONG,
    TOO_MANY,
    check_values,
    count_chars,
    prompt_chars_most,
)
from peagle.errors import RequestError

# Batches are common. Other requests wait while their texts are tokenized one by one: about a second at this size.
TIMES_IN_ALL, CHARS_IN_ALL = 8, 2**21
# Fields that hold texts. A single text next to a list is paired with each text of the list.
TEXTS = ("input", "query", "queries", "documents", "items", "text_1", "text_2", "data_1", "data_2")
# Fields that a template may put in front of each text.
_SHARED = ("instruction", "chat_template_kwargs", "mm_processor_kwargs")


def check_pooled(data: Mapping[str, Any], settings: ApiSettings, context_tokens: int | None) -> None:
    """Refuse an embedding or scoring request over the limits; arguments and errors as in `check_request`."""
    for field, value in data.items():
        if isinstance(value, list | dict) and len(value) > MAX_LISTED:
            raise RequestError(f"{field}: {len(value)} values; at most {MAX_LISTED} are allowed.", field, TOO_MANY)
    check_values(data.get("input"), ("input",))
    texts = {field: texts_in(data[field]) for field in TEXTS if data.get(field) is not None}
    for field, listed in texts.items():
        if len(listed) > settings.max_inputs:
            message = f"{field}: {len(listed)} texts; at most {settings.max_inputs} are allowed in one request."
            raise RequestError(message, field, TOO_MANY)
    if not any(texts.values()):
        return
    chars = {field: [count_chars(text) for text in listed] for field, listed in texts.items() if listed}
    shared = sum(count_chars(data.get(field)) for field in _SHARED)
    count = max(map(len, chars.values()))
    longest, whole = shared, count * shared
    for each in chars.values():
        longest += max(each)
        whole += sum(each) * (count if len(each) == 1 else 1)
    most = prompt_chars_most(settings, context_tokens)
    largest = max(chars, key=lambda field: sum(chars[field]))
    for found, noun, limit in (
        (longest, "the longest text has", most),
        (whole, "all texts together have", max(most, min(TIMES_IN_ALL * most, CHARS_IN_ALL))),
    ):
        if found > limit:
            message = f"{largest}: {noun} {found} characters, of which a token id counts as one"
            raise RequestError(f"{message}; at most {limit} are allowed here.", largest, TOO_LONG)


def texts_in(value: Any) -> list[Any]:
    """Return the texts in a field: a list, or a single text, which may be token ids."""
    if not isinstance(value, list):
        return [value]
    return [value] if value and isinstance(value[0], int) else value
