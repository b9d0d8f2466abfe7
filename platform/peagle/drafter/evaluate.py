"""Acceptance of a trained head on text that its target wrote, without an engine.

Every row is walked as a greedy engine writes it: from the answer's first token the head drafts K tokens, those that the
target wrote itself are accepted up to the first other one, the target adds a token, and drafting goes on behind it. The
head always sees the target's own hidden states of what is written, as in vLLM; what it drafts comes from the pass that
it is trained with, in the same precision.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.peagle import PEagleDraftModel
from transformers import AutoConfig

from peagle.drafter.export import TRAINING_ONLY
from peagle.drafter.heads import HEAD_PLANS, HeadPlan, Row, TargetTap, autocast, make_head
from peagle.drafter.partition import draft_tokens
from peagle.drafter.text import GeneratedText
from peagle.engine.checkpoint import Folder
from peagle.errors import ConfigError

# Of greedy text the target chooses nearly every token again; what it does not is a tie that rounding decides.
GREEDY_RATIO_MIN = 0.9
_OTHER_TRAINING = "Evaluate a head that `peagle drafter train` wrote for this target."


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What came of `steps` drafts of `depth` tokens each; `accepted_steps[j]` had their first j + 1 tokens accepted.

    `rows_left_out` were not greedy, so that they do not tell what the target would have written.
    """

    method: str
    depth: int
    rows: int
    rows_left_out: int
    steps: int
    accepted_steps: tuple[int, ...]

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Share of drafts of which the first j + 1 tokens were all accepted."""
        return tuple(count / max(1, self.steps) for count in self.accepted_steps)

    @property
    def acceptance_length(self) -> float:
        """Tokens that a step gives: the accepted ones, and the target's own."""
        return 1 + sum(self.acceptance_by_position)

    def as_json(self) -> str:
        derived = {
            "acceptance_by_position": self.acceptance_by_position,
            "acceptance_length": self.acceptance_length,
        }
        return json.dumps(asdict(self) | derived)


def evaluate(
    target: Path, head_folder: Path, text: GeneratedText, depth: int | None, report: Callable[[int], None]
) -> Evaluation:
    """Walk every row of `text`, which the head should not have been trained on.

    Args:
        depth: K, at most the head's trained depth, which it is by default.
        report: Called with the number of rows that are done.

    Raises:
        ConfigError: The head does not belong to the target, or no row of `text` tells anything.
    """
    head, plan = load_head(target, head_folder)
    vocabulary = head.verifier_lm_head.weight.shape[0]
    if text.tokens.min() < 0 or text.tokens.max() >= vocabulary:
        problem = f"the target's tokens go from 0 to {vocabulary - 1}"
        raise ConfigError("GENERATED", int(text.tokens.max()), problem, "Write it with this target.")
    depth = _depth(depth, plan, text)
    tap = TargetTap(target, plan.tapped_layers or ())
    accepted: list[int] = []
    left_out = 0
    for done, (tokens, prompt_tokens) in enumerate(zip(text.tokens, text.prompt_tokens, strict=True), 1):
        batch = tap(Row(tokens, int(prompt_tokens)))
        if _greedy_ratio(head, batch, tokens, int(prompt_tokens)) < GREEDY_RATIO_MIN:
            left_out += 1
        else:
            accepted += walk(drafts_of(head, batch, depth).numpy(), tokens, int(prompt_tokens))
        report(done)
    if not accepted:
        problem = "no row is greedy text of this target with room for a draft"
        raise ConfigError("GENERATED", None, problem, "Write it with `peagle drafter generate --held-out`.")
    counts = tuple(sum(each > position for each in accepted) for position in range(depth))
    return Evaluation(plan.method, depth, len(text.tokens), left_out, len(accepted), counts)


def walk(drafts: np.ndarray, tokens: np.ndarray, prompt_tokens: int) -> list[int]:
    """How many drafted tokens each step along a row accepts.

    Args:
        drafts: What is drafted where the last known token is the row's second, its third, and so on:
            int, [tokens - 1, depth].
        tokens: The row: int, [tokens], of which the first `prompt_tokens` are the prompt.
    """
    depth = drafts.shape[1]
    known = max(1, prompt_tokens)  # index of the last token that is written; the target gave the answer's first
    accepted = []
    while known + depth < len(tokens):
        right = drafts[known - 1] == tokens[known + 1 : known + 1 + depth]
        count = depth if right.all() else int(right.argmin())
        accepted.append(count)
        known += count + 1
    return accepted


@torch.no_grad()
def drafts_of(head: Eagle3DraftModel, batch: dict[str, torch.Tensor], depth: int) -> torch.Tensor:
    """What a head of either method drafts from every position of a row: int, [length, depth].

    EAGLE-3 is given the row's tokens where it would draft from its own: the same, as long as they are accepted.
    """
    known = {name: batch[name] for name in ("input_ids", "hidden_states", "document_ids", "position_ids")}
    if isinstance(head, PEagleDraftModel):
        return draft_tokens(head, known, depth, autocast)
    with autocast():
        steps: Sequence[torch.Tensor] = head(**known, ttt_steps=depth)
    return torch.stack([step[0] for step in steps], dim=1)


def load_head(target: Path, folder: Path) -> tuple[Eagle3DraftModel, HeadPlan]:
    """Load a head that `peagle drafter train` wrote, as it was trained, and what of its plan the checkpoint tells.

    Raises:
        ConfigError: It is none, or of another target.
    """
    files = Folder(folder, "HEAD")
    config = files.read_json("config.json")
    for key in ("norm_before_residual", "fc_norm", "norm_output"):
        if config.get(key) is not True:
            raise files.wrong(f"config.json: {key}", config.get(key), "it was trained in another way", _OTHER_TRAINING)
    files.read_tensors()
    plan = _plan(files, config)
    mask_token = config.get("ptd_token_id")
    head = make_head(target, AutoConfig.from_pretrained(target), mask_token, plan, plan.tapped_layers or ())
    weights = {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}
    if "mask_hidden" in weights:
        weights["mask_hidden"] = weights["mask_hidden"].reshape(1, 1, -1)
    own = {name for name in head.state_dict() if not name.startswith(TRAINING_ONLY)}
    if weights.keys() != own:
        name = min(weights.keys() ^ own)
        problem = "it is missing" if name in own else "the head has no such tensor"
        raise files.wrong(f"tensor {name}", None, problem, _OTHER_TRAINING)
    for name, value in weights.items():
        if value.shape != (expected := head.state_dict()[name].shape):
            problem = f"its shape must be {list(expected)} for this target"
            raise files.wrong(f"tensor {name}", list(value.shape), problem, _OTHER_TRAINING)
    head.load_state_dict(weights, strict=False)
    return head.eval(), plan


def _plan(files: Folder, config: dict[str, Any]) -> HeadPlan:
    taps = config.get("eagle_aux_hidden_state_layer_ids")
    if not isinstance(taps, list) or len(taps) != 3 or not all(isinstance(tap, int) for tap in taps):
        problem = "it must list three layers"
        raise files.wrong("config.json: eagle_aux_hidden_state_layer_ids", taps, problem, _OTHER_TRAINING)
    return replace(
        HEAD_PLANS["p-eagle" if "ptd_token_id" in config else "eagle3"],
        layers=_count(files, config, "num_hidden_layers"),
        trained_depth=_count(files, config, "trained_depth"),
        tapped_layers=tuple(taps),
    )


def _count(files: Folder, config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise files.wrong(f"config.json: {key}", value, "it must be a whole number from 1", _OTHER_TRAINING)
    return value


def _depth(depth: int | None, plan: HeadPlan, text: GeneratedText) -> int:
    depth = depth or plan.trained_depth
    if depth > plan.trained_depth:
        problem = f"the head was trained to depth {plan.trained_depth}"
        raise ConfigError("--depth", depth, problem, f"Lower it to {plan.trained_depth}.")
    if text.tokens.shape[1] < depth + 2:
        problem = f"{depth} drafts need rows of {depth + 2} tokens"
        raise ConfigError("GENERATED", text.tokens.shape[1], problem, "Generate longer rows, or lower --depth.")
    return depth


@torch.no_grad()
def _greedy_ratio(
    head: Eagle3DraftModel, batch: dict[str, torch.Tensor], tokens: np.ndarray, prompt_tokens: int
) -> float:
    """Share of the answer's tokens, from the second on, that are the target's first choice."""
    with autocast():
        logits = head.verifier_lm_head(head.verifier_norm(batch["verifier_last_hidden_states"]))
    chosen = logits[0].argmax(-1).numpy()[:-1]  # what the target chooses for the row's third token, its fourth, ...
    first = max(0, prompt_tokens - 1)
    agrees = chosen[first:] == tokens[2 + first :]
    return float(agrees.mean()) if len(agrees) else 0.0
