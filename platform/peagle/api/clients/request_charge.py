"""What one request takes of its client's limits: first what is expected of it, in the end what it really used."""

import json
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, get_args

from pydantic import BaseModel

from peagle.api.bounds.request_bounds import MEDIA_FIELDS, count_chars
from peagle.api.relay import DONE, split_events
from peagle.router.fairness.client import Client, ClientClass

# Usual for prose and code: no tokenizer is at hand, and what is wrong is corrected at the end.
CHARS_PER_TOKEN = 4
# Of a usual answer, until some were seen; and over how many the mean of those is taken.
OUTPUT_TOKENS, MEAN_OVER = 128.0, 64
# What of a request is put before a model, beside `prompt`, under the names that APIs have for it.
_PROMPT_PARTS = ("messages", "tools", "documents", "input", "instructions", "system")
# What an answer is limited to, under whatever name the request's API has for it.
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# A part of an event of vLLM's. Text cannot look so: JSON escapes a quote inside a string.
_USAGE = re.compile(r',"usage":(\{(?:[^{}]|\{[^{}]*\})*\})')
_INDEX = re.compile(r'"index":(\d+)')
_USAGE_ALONE = '"choices":[]'

# How an engine learns whose a request is. The ingress sets it; a client's own header of the name goes no further.
CLIENT_HEADER = "x-peagle-client"


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request, over all its prompts and answers; `cached` are of `prompt`, `accepted` of `drafted`."""

    prompt: int = 0
    cached: int = 0
    output: int = 0
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Usage":
        """From the `usage` of an answer."""
        details, drafts = plain.get("prompt_tokens_details") or {}, plain.get("speculation") or {}
        return cls(
            prompt=plain.get("prompt_tokens") or 0,
            cached=details.get("cached_tokens") or 0,
            output=plain.get("completion_tokens") or 0,
            drafted=drafts.get("drafted_tokens") or 0,
            accepted=drafts.get("accepted_tokens") or 0,
        )


@dataclass(slots=True, eq=False)
class Charge:
    """One request of a client.

    Attributes:
        client: Whose it is, of the class that the request asks for.
        model: The model that it asks.
        prompt_tokens: Expected.
        output_tokens: Expected of all its answers together.
        answers: How many it asks for.
        used: What the engine counted so far; None where it has not said, and what was expected counts.
        is_waiting: Whether its answer has not begun.
        is_open: Whether it is admitted and not over.
    """

    client: Client
    model: str
    prompt_tokens: int
    output_tokens: int
    answers: int = 1
    used: Usage | None = None
    is_waiting: bool = True
    is_open: bool = False

    @property
    def tokens(self) -> int:
        """Expected of prompt and answers together."""
        return self.prompt_tokens + self.output_tokens

    @property
    def header(self) -> str:
        """The value of `CLIENT_HEADER`."""
        told = {"client": self.client.name, "weight": self.client.weight, "class": self.client.class_}
        return json.dumps(told, separators=(",", ":"))


class UsualLengths:
    """Tokens of a usual answer by model, as this process saw them."""

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}

    def of(self, model: str) -> float:
        return self._mean.get(model, OUTPUT_TOKENS)

    def saw(self, charge: Charge) -> None:
        """Learn from a request that is over."""
        if charge.used is not None and charge.used.output:
            mean = self.of(charge.model)
            self._mean[charge.model] = mean + (charge.used.output / charge.answers - mean) / MEAN_OVER


def charge_of(client: Client, model: str, body: Any, usual_output_tokens: float | None) -> Charge:
    """What to expect of a request.

    Args:
        client: Whose it is. OpenAI's `service_tier: flex` asks for the lower class.
        model: The model that it asks.
        body: vLLM's request model.
        usual_output_tokens: Of one answer whose length the request does not limit; None if it does not generate, which
            takes no tokens.
    """
    if getattr(body, "service_tier", None) == "flex":
        client = replace(client, class_=ClientClass.BATCH)
    if usual_output_tokens is None:
        return Charge(client, model, 0, 0)
    prompt = getattr(body, "prompt", None)
    many = isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list)
    prompts: list[Any] = list(prompt or ()) if many else [prompt]
    tokens = sum(len(each) if _are_ids(each) else count_chars(each) // CHARS_PER_TOKEN for each in prompts)
    parts = (getattr(body, field, None) for field in _PROMPT_PARTS)
    tokens += sum(count_chars(each, MEDIA_FIELDS) for each in parts) // CHARS_PER_TOKEN
    limits = (getattr(body, name, None) for name in _OUTPUT_LIMITS)
    output = min((limit for limit in limits if limit is not None), default=max(1, int(usual_output_tokens)))
    answers = len(prompts) * (getattr(body, "n", None) or 1)
    return Charge(client, model, tokens, output * answers, answers)


def _are_ids(prompt: Any) -> bool:
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)


async def metered(
    replies: AsyncGenerator[Any, None], body: Any, charge: Charge, begin: Callable[[], None], end: Callable[[], None]
) -> AsyncGenerator[Any, None]:
    """Pass a replica's replies on, and read in them what was used; take out what of that the client did not ask for.

    Args:
        replies: Of one try; closed at the end.
        body: The request as the client made it; `ask_for_usage` makes what is sent.
        charge: Gets `used`.
        begin: Called before the first reply is passed on, whatever it says.
        end: Called before the last one is, so that a client that has it may ask again.
    """
    options = getattr(body, "stream_options", None)
    wanted = bool(options and options.include_usage)
    each_wanted = wanted and bool(options and options.continuous_usage_stats)
    choices: dict[int, Usage] = {}
    async with aclosing(replies):
        async for reply in replies:
            begin()
            if isinstance(reply, BaseModel):
                usage = getattr(reply, "usage", None)
                charge.used = Usage.of(usage.model_dump()) if usage is not None else Usage()
                end()
                yield reply
                continue
            kept = []
            for event in split_events(reply):
                found = _USAGE.search(event)
                alone = found is not None and _USAGE_ALONE in event
                if found is not None:
                    _note(charge, choices, event, found.group(1), alone)
                if found is None or (wanted if alone else each_wanted):
                    kept.append(event)
                elif not alone:
                    kept.append(event[: found.start()] + event[found.end() :])
            if kept:
                if kept[-1].endswith(DONE):
                    end()
                yield kept


def _note(charge: Charge, choices: dict[int, Usage], event: str, usage: str, whole: bool) -> None:
    """Take what a stream used so far: of one choice, or at its end of all."""
    counts = Usage.of(json.loads(usage))
    if whole:
        charge.used = counts
        return
    index = _INDEX.search(event)
    choices[int(index.group(1)) if index else 0] = counts
    charge.used = Usage(prompt=counts.prompt, output=sum(each.output for each in choices.values()))


def ask_for_usage(body: Any) -> Any:
    """The request to send for a client's `body`: each event of a stream says what was used, in case nobody reads on."""
    field = type(body).model_fields.get("stream_options")
    if field is None or not getattr(body, "stream", False):
        return body
    options = get_args(field.annotation)[0]  # vLLM moves the class about
    return body.model_copy(update={"stream_options": options(include_usage=True, continuous_usage_stats=True)})
