"""Strict models of files that people write, and pydantic's complaints about them in the project's words."""

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from peagle.errors import CombinedConfigError, ConfigError


class Strict(BaseModel):
    """A frozen section of a file: nothing unknown in it, nothing converted, no infinite number."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


Model = TypeVar("Model", bound=Strict)


def wrong(field: str, value: object, problem: str, fix: str) -> PydanticCustomError:
    """Return what a validator raises: `field` below the place it stands at, the rest as in ConfigError."""
    return PydanticCustomError(
        "peagle", "{problem}; {fix}", {"field": field, "value": value, "problem": problem, "fix": fix}
    )


def parse(
    model: type[Model],
    raw: Mapping[str, Any],
    origin: str,
    noun: str,
    opaque: Collection[str] = (),
    secret: Collection[str] = (),
) -> Model:
    """Validate plain values as `model`, which messages call `noun`.

    Of a problem in a section of `opaque` only the field's name is told, not what lies below it; of one in `secret` no
    value.

    Raises ConfigError where a field is wrong; all wrong fields are named, and `origin` leads each path.
    """
    try:
        return model.model_validate(dict(raw))
    except ValidationError as error:
        problems = [_problem(details, model, noun, opaque, secret) for details in error.errors()]
        raise CombinedConfigError.of(problems).under(origin) from None


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that `name` is most likely a slip of, if any is near enough."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.7)), None)


# Problem and fix for each kind of error that pydantic finds, filled in from the error's own context.
_ADVICE: Mapping[str, tuple[str, str]] = {
    "missing": ("it is required", "Add it."),
    "string_type": ("it must be text", "Put it in quotes."),
    "string_too_short": ("it is empty", "Write it, or remove the field."),
    "string_too_long": ("it is longer than {max_length} characters", "Shorten it."),
    "string_pattern_mismatch": (
        "it must start with a letter or digit and hold only these and . _ / -, at most 128",
        "Rename it.",
    ),
    "int_type": ("it must be a whole number", "Write one, without quotes and without a fraction."),
    "float_type": ("it must be a number", "Write one, without quotes."),
    "finite_number": ("it must be a finite number", "Write one."),
    "bool_type": ("it must be true or false", "Write true or false, without quotes."),
    "greater_than": ("it must be above {gt}", "Raise it."),
    "greater_than_equal": ("it must be at least {ge}", "Raise it."),
    "less_than_equal": ("it must be at most {le}", "Lower it."),
    "literal_error": ("it must be {expected}", "Write one of these."),
    "model_type": ("it must hold fields", "Write fields under it, or remove it."),
    "dict_type": ("it must hold fields", "Write fields under it, or remove it."),
    "invalid_key": ("a field's name must be text", "Put it in quotes."),
    "invalid-json-value": ("it is not a plain value", "Write text in quotes, a number, true, false, a list or fields."),
}


def _problem(
    details: ErrorDetails, model: type[Strict], noun: str, opaque: Collection[str], secret: Collection[str]
) -> ConfigError:
    """Put one of pydantic's errors in the project's words; `details["loc"]` becomes the field's path."""
    place = [str(part)[:80] for part in details["loc"]]
    if place and place[0] in opaque:
        place = place[:2]
    value, context = details["input"], details.get("ctx", {})
    if details["type"] == "peagle":
        place += [context["field"]] if context["field"] else []
        value, problem, fix = context["value"], context["problem"], context["fix"]
    elif details["type"] == "extra_forbidden":
        problem, fix = "there is no such field", _known_fields(place, model, noun)
    else:
        problem, fix = _ADVICE.get(details["type"], (details["msg"], "Correct it."))
        problem, fix = problem.format(**context), fix.format(**context)
    if details["type"] == "missing" or (place and place[0] in secret):
        value = None
    return ConfigError(".".join(place), value, problem, fix)


def _known_fields(place: list[str], model: type[Strict], noun: str) -> str:
    """Say what the unknown last part of `place` may have meant, and what its section knows."""
    *parents, name = place
    sections = dict(_sections(model))
    section, known = ".".join(parents), sections[tuple(parents)]
    near = closest(name, known)
    if near is None:
        near = next((".".join((*path, name)) for path, fields in sections.items() if name in fields), None)
    meant = f"Did you mean {near}? " if near else ""
    return f"{meant}Known in {section or noun}: {', '.join(known)}."


def _sections(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield the path of every section of `model`, and the fields it knows."""
    yield path, tuple(field.alias or name for name, field in model.model_fields.items())
    for name, field in model.model_fields.items():
        for kind in (field.annotation, *get_args(field.annotation)):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from _sections(kind, (*path, name))
