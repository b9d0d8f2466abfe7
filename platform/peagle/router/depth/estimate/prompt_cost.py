"""Cost of prompts, with a drafter that runs over them and without. Drafting must pay for prompts and decoding."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from peagle.router.depth.estimate.step_cost import Load, StepCost
from peagle.router.snapshot import PromptCell, PromptStats

# Half-life of seconds in prompt tokens, and of the request mix in output tokens.
_PROMPT_HALF_LIFE, _OUTPUT_HALF_LIFE = 20_000.0, 5_000.0
# First guesses and their weight in prompt tokens: a token takes as long as verifying one, and the drafter adds this
# share of the target's time.
_GUESS_TOKENS, _GUESS_SHARE, _SHARE_TOKENS = 500.0, 0.25, 4_000.0
_SHARE_MAX = 1.0

Kind = tuple[bool, bool]
"""Whether the drafter ran, and whether other requests decoded in the same steps."""


@dataclass(frozen=True, slots=True)
class Seconds:
    """Prompt tokens and their seconds; both fade."""

    tokens: float = 0.0
    seconds: float = 0.0

    def add(self, tokens: float, seconds: float) -> "Seconds":
        kept = 0.5 ** (tokens / _PROMPT_HALF_LIFE)
        return Seconds(self.tokens * kept + tokens, self.seconds * kept + seconds)


@dataclass(frozen=True, slots=True)
class PromptCost:
    """Learned from steps with prompts, with the machine's drift removed.

    Attributes:
        seen: Tokens and seconds by kind of step.
        prompt_tokens, output_tokens: Of ended requests, without cached prompt tokens; both fade.
    """

    seen: Mapping[Kind, Seconds] = field(default_factory=dict)
    prompt_tokens: float = 0.0
    output_tokens: float = 0.0

    @property
    def prompt_ratio(self) -> float:
        """Prompt tokens for each output token; 0 before any request has ended."""
        return self.prompt_tokens / self.output_tokens if self.output_tokens else 0.0

    @property
    def drafter_share(self) -> float:
        """Time that the drafter adds, as a share of the target's time.

        Only steps of the same kind are compared: prompts are cheaper in steps that also decode, which read the weights
        anyway.
        """
        weight, share = _SHARE_TOKENS, _SHARE_TOKENS * _GUESS_SHARE
        for beside in (False, True):
            plain, drafted = (self.seen.get((drafter, beside), Seconds()) for drafter in (False, True))
            if plain.seconds > 0.0 and drafted.seconds > 0.0:
                both = min(plain.tokens, drafted.tokens)
                found = drafted.seconds / drafted.tokens / (plain.seconds / plain.tokens) - 1.0
                weight, share = weight + both, share + both * min(max(found, 0.0), _SHARE_MAX)
        return share / weight

    def seconds(self, cost: StepCost, drafts: bool) -> float:
        """Return the seconds spent on prompts for each output token."""
        if not self.prompt_ratio:
            return 0.0
        added = self.drafter_share
        tokens, seconds = _GUESS_TOKENS, _GUESS_TOKENS * cost.coefficients.token
        for (drafter, _), seen in self.seen.items():
            tokens, seconds = tokens + seen.tokens, seconds + seen.seconds / (1.0 + added * drafter)
        return self.prompt_ratio * cost.drift * seconds / tokens * (1.0 + added * drafts)


def observe(state: PromptCost, added: PromptStats, cost: StepCost) -> PromptCost:
    """Learn from one report; `cost` estimates the time of the sequences that decoded in the same steps."""
    kept = 0.5 ** (added.ended_output_tokens / _OUTPUT_HALF_LIFE)
    return PromptCost(
        _observed(state.seen, added.cells, cost),
        state.prompt_tokens * kept + added.ended_prompt_tokens,
        state.output_tokens * kept + added.ended_output_tokens,
    )


def _observed(state: Mapping[Kind, Seconds], cells: Iterable[PromptCell], cost: StepCost) -> Mapping[Kind, Seconds]:
    seen = dict(state)
    for cell in cells:
        if cell.steps > 0 and cell.prompt_tokens > 0 and cell.seconds > 0.0:
            kind = cell.drafter, cell.beside
            spent_s = max(0.0, cell.seconds - cell.steps * _decoding_s(cell, cost)) / cost.drift
            seen[kind] = seen.get(kind, Seconds()).add(cell.prompt_tokens, spent_s)
    return seen


def _decoding_s(cell: PromptCell, cost: StepCost) -> float:
    """Return the seconds that a mean step would take without its prompts."""
    if not cell.decoded:
        return 0.0
    batch_size = cell.decoded / cell.steps
    return cost.step_s(Load(batch_size, batch_size + cell.verified / cell.steps, batch_size if cell.drafter else 0.0))
