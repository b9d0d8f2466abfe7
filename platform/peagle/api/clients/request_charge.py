"""A request's charge to its client's limits: the expected tokens first, the used tokens at the end."""

from dataclasses import dataclass, replace
from typing import Any

from peagle.api.bounds.request_bounds import MEDIA_FIELDS, count_chars
from peagle.router.fairness.client_terms import Client, ClientClass
from peagle.router.fairness.step_sharing import Flow

# Usual for prose and code: no tokenizer is available here, and the charge is corrected at the end.
CHARS_PER_TOKEN = 4
# Assumed length of an answer before any was seen; and the number of answers in the running mean.
OUTPUT_TOKENS, MEAN_OVER = 128.0, 64
# Fields of a request that the model reads, besides `prompt`, in the different APIs.
_PROMPT_PARTS = ("messages", "tools", "documents", "input", "instructions", "system")
# Fields that limit an answer's length in the different APIs.
_OUTPUT_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one request over all prompts and answers; `cached` is part of `prompt`, `accepted` of `drafted`."""

    prompt: int = 0
    cached: int = 0
    output: int = 0
    drafted: int = 0
    accepted: int = 0

    @classmethod
    def of(cls, plain: dict[str, Any]) -> "Usage":
        """Read the `usage` of an answer of any API."""
        details = plain.get("prompt_tokens_details") or plain.get("input_tokens_details") or {}
        drafts, read = plain.get("speculation") or {}, plain.get("cache_read_input_tokens") or 0
        return cls(
            # Anthropic's input tokens exclude cached tokens.
            prompt=plain.get("prompt_tokens") or (plain.get("input_tokens") or 0) + read,
            cached=details.get("cached_tokens") or read,
            output=plain.get("completion_tokens") or plain.get("output_tokens") or 0,
            drafted=drafts.get("drafted_tokens") or 0,
            accepted=drafts.get("accepted_tokens") or 0,
        )


@dataclass(slots=True, eq=False)
class Charge:
    """One request of a client.

    Attributes:
        client: The client, with the service class of the request.
        model: The requested model.
        prompt_tokens: Expected prompt tokens.
        output_tokens: Expected tokens of all answers together.
        answers: Number of requested answers.
        used: Usage counted by the engine so far; None if not reported, then the expected tokens count.
        is_waiting: Whether its answer has not begun.
        is_open: Whether it is admitted and has not ended.
        has_place: Whether it holds one of its model's places.
    """

    client: Client
    model: str
    prompt_tokens: int
    output_tokens: int
    answers: int = 1
    used: Usage | None = None
    is_waiting: bool = True
    is_open: bool = False
    has_place: bool = False

    @property
    def tokens(self) -> int:
        """Expected tokens of prompt and answers together."""
        return self.prompt_tokens + self.output_tokens

    @property
    def flow(self) -> Flow:
        """The flow that shares its client's weight."""
        return Flow(self.client.name, self.client.weight, self.client.class_ is ClientClass.BATCH)


class UsualLengths:
    """Mean answer length in tokens by model, as seen by this process."""

    def __init__(self) -> None:
        self._mean: dict[str, float] = {}

    def of(self, model: str) -> float:
        return self._mean.get(model, OUTPUT_TOKENS)

    def saw(self, charge: Charge) -> None:
        """Learn from a request that has ended."""
        if charge.used is not None and charge.used.output:
            mean = self.of(charge.model)
            self._mean[charge.model] = mean + (charge.used.output / charge.answers - mean) / MEAN_OVER


def charge_of(client: Client, model: str, body: Any, usual_output_tokens: float | None) -> Charge:
    """Return the expected charge of a request.

    Args:
        client: The client. OpenAI's `service_tier: flex` selects the lower class.
        model: The requested model.
        body: vLLM's request model.
        usual_output_tokens: Expected length of an answer if the request sets no limit; None if the request does not
            generate.
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
