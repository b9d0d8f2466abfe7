"""Acceptance of a trained head on text that its target wrote, without an engine.

Every row is processed as a greedy engine would write it. From the answer's first token the head drafts K tokens. Drafts
are accepted up to the first that differs from the target's text, the target adds a token, and drafting continues after
it. The head always sees the target's hidden states of the written text, as in vLLM. Its drafts come from the same pass
as in training, in the same precision.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.peagle import PEagleDraftModel

from peagle.drafter.data.generated_text import GeneratedText
from peagle.drafter.train.compute import CPU, autocast
from peagle.drafter.train.head_plan import HeadPlan
from peagle.drafter.train.heads import Row, TargetTap
from peagle.drafter.train.partition import draft_tokens
from peagle.drafter.train.pretrained import load_head
from peagle.errors import ConfigError

# In greedy text the target repeats nearly every token; the rest are ties that rounding decides.
GREEDY_RATIO_MIN = 0.9
# Per row, so that the logits of all positions and depths are not in memory at once.
PARTITIONS = 4


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Result of `steps` drafts of `depth` tokens each; `accepted_steps[j]` counts those with the first j + 1 accepted.

    `rows_left_out` were not greedy, so they do not show what the target would write.
    """

    method: str
    depth: int
    rows: int
    rows_left_out: int
    steps: int
    accepted_steps: tuple[int, ...]

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of drafts whose first j + 1 tokens were all accepted."""
        return tuple(count / max(1, self.steps) for count in self.accepted_steps)

    @property
    def acceptance_length(self) -> float:
        """Tokens that a step yields: the accepted ones, and the target's own."""
        return 1 + sum(self.acceptance_by_position)

    def as_json(self) -> str:
        derived = {
            "acceptance_by_position": self.acceptance_by_position,
            "acceptance_length": self.acceptance_length,
        }
        return json.dumps(asdict(self) | derived)


def evaluate(
    target: Path,
    head_folder: Path,
    text: GeneratedText,
    depth: int | None,
    report: Callable[[int], None],
    device: torch.device = CPU,
) -> Evaluation:
    """Evaluate every row of `text`, which should not be part of the head's training text.

    Args:
        depth: K, at most and by default the head's trained depth.
        report: Called with the number of finished rows.

    Raises:
        ConfigError: The head does not match the target, or no row of `text` can be used.
    """
    head, plan = load_head(target, head_folder)
    vocabulary = head.verifier_lm_head.weight.shape[0]
    lowest, highest = int(text.written.min()), int(text.written.max())
    if lowest < 0 or highest >= vocabulary:
        problem = f"the target's tokens go from 0 to {vocabulary - 1}"
        raise ConfigError("GENERATED", lowest if lowest < 0 else highest, problem, "Write it with this target.")
    depth = _depth(depth, plan, text)
    head.to(device)
    tap = TargetTap(target, plan.tapped_layers or (), device)
    # An engine uses n-grams only on a CPU.
    ngram_bias_nats = plan.ngram_bias_nats if device.type == "cpu" else 0.0
    accepted: list[int] = []
    left_out = 0
    for done, (tokens, prompt_tokens) in enumerate(text.rows(), 1):
        batch = tap(Row(tokens, prompt_tokens))
        if _greedy_ratio(head, batch, tokens, prompt_tokens) < GREEDY_RATIO_MIN:
            left_out += 1
        elif len(tokens) >= depth + 2:  # a shorter row ends before its first draft
            accepted += walk(drafts_of(head, batch, depth, ngram_bias_nats).cpu().numpy(), tokens, prompt_tokens)
        report(done)
    if not accepted:
        problem = "no row is greedy text of this target with room for a draft"
        raise ConfigError("GENERATED", None, problem, "Write it with `peagle drafter generate --held-out`.")
    counts = tuple(sum(each > position for each in accepted) for position in range(depth))
    return Evaluation(plan.method, depth, len(text.tokens), left_out, len(accepted), counts)


def walk(drafts: np.ndarray, tokens: np.ndarray, prompt_tokens: int) -> list[int]:
    """Return how many drafted tokens each step along a row accepts.

    Args:
        drafts: Drafts made when the last known token is the row's second, its third, and so on:
            int, [tokens - 1, depth].
        tokens: The row: int, [tokens], beginning with a prompt of `prompt_tokens`.
    """
    depth = drafts.shape[1]
    known = max(1, prompt_tokens)  # index of the last written token; the target wrote the answer's first token
    accepted = []
    while known + depth < len(tokens):
        right = drafts[known - 1] == tokens[known + 1 : known + 1 + depth]
        count = depth if right.all() else int(right.argmin())
        accepted.append(count)
        known += count + 1
    return accepted


@torch.no_grad()
def drafts_of(
    head: Eagle3DraftModel, batch: dict[str, torch.Tensor], depth: int, ngram_bias_nats: float = 0.0
) -> torch.Tensor:
    """Return the drafts of a head of either method from every position of a row: int, [length, depth].

    EAGLE-3 gets the row's tokens instead of its own drafts: the same, as long as these are accepted.
    """
    known = {name: batch[name] for name in ("input_ids", "hidden_states", "document_ids", "position_ids")}
    if isinstance(head, PEagleDraftModel):
        precision = partial(autocast, batch["input_ids"].device)
        return draft_tokens(head, known, depth, precision, PARTITIONS, ngram_bias_nats)
    with autocast(batch["input_ids"].device):
        steps: Sequence[torch.Tensor] = head(**known, ttt_steps=depth)
    return torch.stack([step[0] for step in steps], dim=1)


def _depth(depth: int | None, plan: HeadPlan, text: GeneratedText) -> int:
    depth = depth or plan.trained_depth
    if depth > plan.trained_depth:
        problem = f"the head was trained to depth {plan.trained_depth}"
        raise ConfigError("--depth", depth, problem, f"Lower it to {plan.trained_depth}.")
    if text.tokens.shape[1] < depth + 2:
        problem = f"{depth} drafts need rows of {depth + 2} tokens"
        fix = "Generate with more --row-tokens, or lower --depth."
        raise ConfigError("GENERATED", text.tokens.shape[1], problem, fix)
    return depth


@torch.no_grad()
def _greedy_ratio(
    head: Eagle3DraftModel, batch: dict[str, torch.Tensor], tokens: np.ndarray, prompt_tokens: int
) -> float:
    """Return the share of the answer's tokens, from the second on, that are the target's first choice."""
    with autocast(batch["input_ids"].device):
        logits = head.verifier_lm_head(head.verifier_norm(batch["verifier_last_hidden_states"]))
    # The target's choices for the row's third token, its fourth, ...
    chosen = logits[0].argmax(-1).cpu().numpy()[:-1]
    first = max(0, prompt_tokens - 1)
    agrees = chosen[first:] == tokens[2 + first :]
    return float(agrees.mean()) if len(agrees) else 0.0
