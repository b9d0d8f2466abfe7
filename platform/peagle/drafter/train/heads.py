"""Trains draft heads for a target with `speculators`: P-EAGLE, and EAGLE-3 as the usual baseline."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from speculators.losses import LossConfig
from speculators.models.dspark.model_definitions import MarkovHead
from speculators.models.eagle3 import Eagle3DraftModel
from speculators.models.peagle import PEagleDraftModel
from speculators.models.peagle.data import generate_cod_sample_indices
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from peagle.drafter.data.generated_text import ANSWER_TOKENS_MIN, GeneratedText
from peagle.drafter.train.compute import ALONE, CPU, Compute, autocast, target_dtype
from peagle.drafter.train.export import export_head
from peagle.drafter.train.head_plan import HeadPlan, tapped_layers_of
from peagle.drafter.train.loss import StepwiseKL, weighted_kl
from peagle.drafter.train.partition import backward_in_chunks
from peagle.drafter.train.record import check_record, learned_from, write_record
from peagle.drafter.train.training import Progress, make_optimizers, restore_checkpoint, save_checkpoint, update
from peagle.errors import ConfigError

# A Markov head starts untrained, often next to a trained head, so its rate is this multiple of the `other` rate.
MARKOV_RATE = 10.0


@dataclass(frozen=True, slots=True)
class Row:
    """Training text, int [tokens], beginning with a prompt of `prompt_tokens`."""

    tokens: np.ndarray
    prompt_tokens: int = 0


def train_head(
    target: Path,
    generated: GeneratedText,
    corpus: np.ndarray,
    mask_token: int | None,
    out: Path,
    plan: HeadPlan,
    report: Callable[[Progress], None],
    checkpoint_every_steps: int = 100,
    start: Mapping[str, torch.Tensor] | None = None,
    compute: Compute = ALONE,
) -> None:
    """Train a head on the target's own text into `out`; continue from `out`'s checkpoint if there is one.

    Several processes give the same head as one, up to the order in which gradients are added: each row is weighted by
    the number of rows of the whole step, and its positions are sampled by its index among them.

    Args:
        target: Folder of the target.
        generated: Text written by the target; its prompts have no loss.
        corpus: Text not written by the target, as one stream: int, [tokens].
        mask_token: Id that represents a token still to be drafted; EAGLE-3 needs none.
        report: Called in the leading process, with the progress of all processes.
        start: Weights of the head in `plan.start`, except those that training takes from the target.

    Raises:
        ConfigError: `out` has a checkpoint of another plan, other text or another target; or the processes see
            different files.
    """
    out.mkdir(parents=True, exist_ok=True)
    learned = learned_from(target, generated, corpus, mask_token)
    compute.agree(lambda: check_record(out, plan, learned))
    torch.manual_seed(plan.seed)
    config = AutoConfig.from_pretrained(target)
    taps = plan.tapped_layers or tapped_layers_of(config.num_hidden_layers)
    head = make_head(target, config, mask_token, plan, taps)
    if start is not None:
        head.load_state_dict(dict(start), strict=False)  # the target's own matrices are in place
    if plan.frozen:
        for name, parameter in head.named_parameters():
            parameter.requires_grad_(name.startswith(("markov_head", "lm_head")))
    head.to(compute.device)
    tap = TargetTap(target, taps, compute.device)
    optimizers = _optimizers(head, plan)
    first = restore_checkpoint(out, head, optimizers)
    _check_same(compute.gather((plan, learned, first)), out)
    if first == 0 and (plan.start is None) != (start is None):
        raise ValueError(f"the plan starts from {plan.start}, but the given weights do not match")
    compute.spread(head.parameters())
    if compute.leads:
        write_record(out, plan, learned)
    for step in range(first, plan.steps):
        started = time.monotonic()
        rows = rows_of_step(generated, corpus, plan, step)
        measures = []
        for number, row in compute.share(rows):
            torch.manual_seed(sampling_seed(plan, step, number))
            measures.append(backward(head, tap(row), plan, len(rows)))
        compute.sum_gradients(each for each in head.parameters() if each.requires_grad)
        update(optimizers, plan.rates.factor_at(step, plan.steps))
        sums = compute.sum(_sums(measures, plan))
        if not compute.leads:
            continue
        tokens_per_s = sum(len(row.tokens) for row in rows) / (time.monotonic() - started)
        report(_progress(sums, len(rows), step + 1, plan.steps, tokens_per_s))
        if (step + 1) % checkpoint_every_steps == 0 or step + 1 == plan.steps:
            save_checkpoint(out, head, optimizers, step + 1)
    if compute.leads:
        export_head(head, out, plan, mask_token)
    compute.wait()


def _check_same(seen: Sequence[object], out: Path) -> None:
    if any(each != seen[0] for each in seen):
        problem = "the processes see different plans, text, targets or checkpoints"
        raise ConfigError("out", str(out), problem, "Keep all of them in folders that every machine shares.")


def sampling_seed(plan: HeadPlan, step: int, row: int) -> int:
    """Return the seed for sampling a step's row, by its index: the same in a resumed run, and in any process."""
    return int(np.random.SeedSequence((plan.seed, step, row)).generate_state(1, np.uint64)[0])


class TargetTap:
    """Runs the target over one row and returns a head's training input, shifted as when drafting."""

    def __init__(self, target: Path, tapped_layers: tuple[int, ...], device: torch.device = CPU) -> None:
        model = AutoModelForCausalLM.from_pretrained(target, dtype=target_dtype(device))
        self._model = model.eval().to(device)
        self._device = device
        self._tapped_layers = tapped_layers
        self._last: torch.Tensor | None = None
        # Hugging Face's own last hidden state includes the final norm; the head applies that norm itself.
        self._model.model.layers[-1].register_forward_hook(self._keep_last)

    def _keep_last(self, _module: torch.nn.Module, _inputs: object, output: Any) -> None:
        self._last = output[0] if isinstance(output, tuple) else output

    def __call__(self, row: Row) -> dict[str, torch.Tensor]:
        tokens = torch.from_numpy(row.tokens).long()[None].to(self._device)
        with torch.no_grad(), autocast(self._device):
            states = self._model(tokens, output_hidden_states=True).hidden_states
        assert self._last is not None
        length = tokens.shape[1] - 1
        loss_mask = torch.ones(1, length, device=self._device)
        loss_mask[:, : max(0, row.prompt_tokens - 1)] = 0  # the first draft follows the answer's first token
        return {
            "input_ids": tokens[:, 1:],
            "hidden_states": torch.cat([states[layer] for layer in self._tapped_layers], dim=-1)[:, :-1],
            "verifier_last_hidden_states": self._last[:, 1:],
            "document_ids": torch.zeros_like(tokens[:, 1:]),
            "position_ids": torch.arange(1, length + 1, device=self._device)[None],
            "loss_mask": loss_mask,
        }


def llama_layers(target: Any, layers: int) -> LlamaConfig:
    """Return the configuration of Llama layers in the sizes of the target with this Hugging Face configuration.

    vLLM runs EAGLE-3 heads made of these layers, for targets of any kind.
    """
    heads = target.num_attention_heads
    return LlamaConfig(
        vocab_size=target.vocab_size,
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(target, "num_key_value_heads", None) or heads,
        head_dim=getattr(target, "head_dim", None) or target.hidden_size // heads,
        hidden_act="silu",
        max_position_embeddings=target.max_position_embeddings,
        initializer_range=target.initializer_range,
        rms_norm_eps=target.rms_norm_eps,
        rope_parameters=target.rope_parameters,
        bos_token_id=target.bos_token_id,
        eos_token_id=target.eos_token_id,
        attention_bias=False,
        mlp_bias=False,
        tie_word_embeddings=False,
    )


def make_head(
    target: Path, config: Any, mask_token: int | None, plan: HeadPlan, taps: tuple[int, ...]
) -> Eagle3DraftModel:
    """Create a head for the target with this Hugging Face `config`: new weights, and the target's embeddings."""
    layers = llama_layers(config, plan.layers)
    shape: dict[str, Any] = {
        "draft_vocab_size": config.vocab_size,
        "norm_before_residual": True,
        "fc_norm": True,
        "norm_output": True,
        "target_layer_ids": list(taps),
        "verifier_name_or_path": str(target),
        "draft_attn_impl": "sdpa",  # flex attention has no backward pass on CPU
    }
    if plan.method == "p-eagle":
        head = PEagleDraftModel.from_training_args(
            layers, mask_token_id=mask_token, num_depths=plan.trained_depth, **shape
        )
        if plan.markov_rank:
            head.markov_head = new_markov_head(config.vocab_size, config.hidden_size, plan.markov_rank)
    else:
        head = Eagle3DraftModel.from_training_args(layers, ttt_steps=plan.trained_depth, **shape)
    # speculators keeps the target's output matrix; a head this small drafts better with its own
    head.lm_head.weight.requires_grad_(True)
    return head.float()


def new_markov_head(vocabulary: int, hidden_size: int, rank: int) -> MarkovHead:
    """Create a Markov head that has no effect at first, but learns at once."""
    markov = MarkovHead(
        verifier_vocab_size=vocabulary,
        draft_vocab_size=vocabulary,
        markov_rank=rank,
        hidden_size=hidden_size,
        head_type="gated",
    )
    torch.nn.init.normal_(markov.markov_w1.weight)
    torch.nn.init.zeros_(markov.markov_w2.weight)
    return markov


def _optimizers(head: torch.nn.Module, plan: HeadPlan) -> tuple[torch.optim.Optimizer, ...]:
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    markov: list[torch.nn.Parameter] = []
    for name, parameter in head.named_parameters():
        if not parameter.requires_grad:
            continue
        if name.startswith("markov_head"):
            markov.append(parameter)
        else:
            hidden = parameter.ndim == 2 and not name.startswith(("embed_tokens", "lm_head"))
            (matrices if hidden else others).append(parameter)
    optimizers = make_optimizers(matrices, others, plan.rates)
    if markov:
        optimizers[-1].add_param_group({"params": markov, "lr": MARKOV_RATE * plan.rates.other})
    return optimizers


def rows_of_step(generated: GeneratedText, corpus: np.ndarray, plan: HeadPlan, step: int) -> list[Row]:
    """Return the rows of one step, of one length if the text is long enough; they depend only on the step number."""
    draw = np.random.default_rng((plan.seed, step))
    whole = generated.tokens.shape[1]
    length = whole if step % plan.whole_row_every == 0 else min(plan.crop_tokens, whole)
    rows = []
    for _ in range(max(1, plan.tokens_per_step // length)):
        if draw.random() < plan.generated_ratio:
            row = int(draw.integers(len(generated.tokens)))
            text, prompt_tokens = generated.row(row), int(generated.prompt_tokens[row])
            kept = min(length, len(text))
            first = min(max(0, prompt_tokens + ANSWER_TOKENS_MIN - kept), len(text) - kept)
            start = draw.integers(first, len(text) - kept + 1)
            rows.append(Row(text[start : start + kept], max(0, prompt_tokens - start)))
        else:
            start = draw.integers(len(corpus) - length)
            rows.append(Row(corpus[start : start + length]))
    return rows


def backward(head: Eagle3DraftModel, batch: dict[str, torch.Tensor], plan: HeadPlan, rows: int) -> dict[str, float]:
    """Add the gradients of one of a step's `rows`; return its measurements."""
    device = batch["input_ids"].device
    precision = partial(autocast, device)
    if plan.method == "eagle3":
        losses = StepwiseKL(plan.confidence_floor)
        with precision():
            _, _, metrics = head(**batch, loss_config=losses.config, ttt_steps=plan.trained_depth)
        loss: Any = losses.mean(batch["loss_mask"])
    else:
        sampling = {
            "num_depths": plan.trained_depth,
            "down_sample_ratio": plan.depth_ratio,
            "down_sample_ratio_min": plan.depth_ratio_min,
        }
        kept = [max(plan.depth_ratio**depth, plan.depth_ratio_min) for depth in range(plan.trained_depth)]

        def loss_of(anchors: torch.Tensor, depths: torch.Tensor) -> LossConfig:
            return weighted_kl(anchors, depths, batch["loss_mask"], kept, plan.confidence_floor)

        if plan.partitions > 1 or plan.markov_rank:
            return backward_in_chunks(head, batch, plan.partitions, sampling, loss_of, precision, 1 / rows)
        # The head samples these again, from the same random state.
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            length = batch["input_ids"].shape[1]
            chains = generate_cod_sample_indices(seq_length=length, loss_mask=batch["loss_mask"], **sampling)
        with precision():
            _, loss, metrics = head(**batch, loss_config=loss_of(*chains), **sampling)
    (loss / rows).backward()
    return {name: float(value) for name, value in metrics.items()} | {"loss": float(loss.detach())}


def _sums(measures: Sequence[Mapping[str, float]], plan: HeadPlan) -> list[float]:
    """Sum over some of a step's rows: their losses, then for each depth the right drafts and all drafts.

    For P-EAGLE a draft counts by itself; for EAGLE-3 only with all before it.
    """
    name = "position_{}_acc" if plan.method == "p-eagle" else "full_acc_{}"  # speculators' names
    names = ["loss"]
    for depth in range(plan.trained_depth):
        names += [f"{name.format(depth)}_sum", f"{name.format(depth)}_total"]
    return [sum(each[name] for each in measures) for name in names]


def _progress(sums: Sequence[float], rows: int, step: int, steps: int, tokens_per_s: float) -> Progress:
    """Return the progress of a step of `rows`, from the `_sums` over all of them."""
    accuracy = tuple(right / max(drafts, 1.0) for right, drafts in zip(sums[1::2], sums[2::2], strict=True))
    return Progress(step, steps, sums[0] / rows, tokens_per_s, accuracy)
