"""Trains the embedded model: a deep, narrow Llama, so that its forward pass costs far more than a drafter's."""

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch.nn import functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from peagle.drafter.data.corpus import END_OF_TEXT, Corpus, special_id, token_stream, train_tokenizer
from peagle.drafter.train.training import (
    Progress,
    Rates,
    checkpoint_step,
    make_optimizers,
    restore_checkpoint,
    save_checkpoint,
    update,
)

# The model completes text; a conversation is the concatenation of its messages.
CHAT_TEMPLATE = "{% for message in messages %}{{ message['content'] }}{{ '\\n' }}{% endfor %}"

TARGET_RATES = Rates(matrix=6e-3, other=3e-3, warmup_steps=60, decay_steps=450)


@dataclass(frozen=True, slots=True)
class Stage:
    """A range of steps with one number of layers, with its own warm-up and decay."""

    layers: int
    steps: int


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """Shape and schedule. Sequences are short while the rate holds, which is faster, and full while it falls.

    A deep model is cheapest to train when it starts shallow. Each stage continues from the previous one with added
    layers that change nothing at first (progressive stacking, arXiv 2405.15319; identity blocks as in LLaMA Pro, arXiv
    2401.02415).
    """

    vocab_size: int = 2048
    hidden_size: int = 192
    mlp_size: int = 512
    head_size: int = 64
    context_tokens: int = 1024
    sequence_tokens: int = 512
    batch_tokens: int = 4096
    stages: tuple[Stage, ...] = (Stage(layers=16, steps=2150), Stage(layers=24, steps=1500))
    rates: Rates = TARGET_RATES
    seed: int = 20

    @property
    def steps(self) -> int:
        return sum(stage.steps for stage in self.stages)


def train_target(
    corpus: Corpus,
    out: Path,
    plan: TargetPlan,
    report: Callable[[Progress], None],
    checkpoint_every_steps: int = 100,
) -> float:
    """Train on `corpus` into `out` (a Hugging Face folder); continue from `out`'s checkpoint if there is one.

    Batches depend only on the step number, so an interrupted run ends like an uninterrupted one.

    Returns:
        Held-out loss in nats per token.
    """
    out.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(corpus, out, plan)
    tokens = torch.from_numpy(token_stream(tokenizer, corpus.train)).long()
    torch.manual_seed(plan.seed)
    model = _model(plan, tokenizer)
    done, ended = checkpoint_step(out), 0
    for stage in plan.stages:
        started, ended = ended, ended + stage.steps
        model = grown(model, stage.layers)
        if done > ended:
            continue  # the checkpoint of a later stage includes this one
        optimizers = _optimizers(model, plan)
        first = restore_checkpoint(out, model, optimizers) if done > started else started
        compiled = torch.compile(model)
        for step in range(first, ended):
            begun = time.monotonic()
            factor = plan.rates.factor_at(step - started, stage.steps)
            falling = step >= ended - plan.rates.decay_steps
            length = plan.context_tokens if falling else plan.sequence_tokens
            loss = _backward(compiled, *_batch(tokens, plan, step, length))
            update(optimizers, factor)
            report(Progress(step + 1, plan.steps, loss, plan.batch_tokens / (time.monotonic() - begun)))
            if (step + 1) % checkpoint_every_steps == 0 or step + 1 == ended:
                save_checkpoint(out, model, optimizers, step + 1)
    export_target(model, tokenizer, out)
    return held_out_loss(model, token_stream(tokenizer, corpus.held_out), plan.sequence_tokens)


def grown(model: LlamaForCausalLM, layers: int) -> LlamaForCausalLM:
    """Return `model` with `layers` layers: copies, spread evenly, that add nothing to the residual stream at first.

    Raises ValueError if `model` has more layers than that.
    """
    had = model.config.num_hidden_layers
    if layers < had:
        raise ValueError(f"a model of {had} layers cannot grow to {layers}")
    if layers == had:
        return model
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    deeper = LlamaForCausalLM(config)
    deeper.model.embed_tokens, deeper.model.norm, deeper.lm_head = (
        model.model.embed_tokens,
        model.model.norm,
        model.lm_head,
    )
    sources = [layer * had // layers for layer in range(layers)]
    for layer, source in enumerate(sources):
        block = deeper.model.layers[layer]
        block.load_state_dict(model.model.layers[source].state_dict())
        if layer and source == sources[layer - 1]:
            torch.nn.init.zeros_(block.self_attn.o_proj.weight)
            torch.nn.init.zeros_(block.mlp.down_proj.weight)
    return deeper


def held_out_loss(model: LlamaForCausalLM, tokens: np.ndarray, sequence_tokens: int) -> float:
    """Return the mean loss in nats per token over `tokens` (int, [tokens]), cut into disjoint sequences."""
    rows = torch.from_numpy(tokens[: (len(tokens) - 1) // sequence_tokens * sequence_tokens + 1]).long()
    losses = []
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for at in range(0, len(rows) - 1, sequence_tokens):
            window = rows[at : at + sequence_tokens + 1]
            logits = model(input_ids=window[None, :-1]).logits[0].float()
            losses.append(functional.cross_entropy(logits, window[1:]).item())
    model.train()
    return math.fsum(losses) / len(losses)


def export_target(model: LlamaForCausalLM, tokenizer: Tokenizer, out: Path) -> None:
    """Write `model` in bfloat16, with tokenizer and chat template, as a folder that vLLM can load."""
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=model.config.max_position_embeddings,
        clean_up_tokenization_spaces=False,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    wrapped.save_pretrained(out)


def _tokenizer(corpus: Corpus, out: Path, plan: TargetPlan) -> Tokenizer:
    path = out / "tokenizer.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = train_tokenizer(corpus.train, plan.vocab_size)
    tokenizer.save(str(path))
    return tokenizer


def _model(plan: TargetPlan, tokenizer: Tokenizer) -> LlamaForCausalLM:
    heads = plan.hidden_size // plan.head_size
    end = special_id(tokenizer, END_OF_TEXT)
    config = LlamaConfig(
        vocab_size=plan.vocab_size,
        hidden_size=plan.hidden_size,
        intermediate_size=plan.mlp_size,
        num_hidden_layers=plan.stages[0].layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=plan.head_size,
        max_position_embeddings=plan.context_tokens,
        tie_word_embeddings=False,
        bos_token_id=end,
        eos_token_id=end,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def _optimizers(model: LlamaForCausalLM, plan: TargetPlan) -> tuple[torch.optim.Optimizer, ...]:
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        in_layer = parameter.ndim == 2 and name.startswith("model.layers.")
        (matrices if in_layer else others).append(parameter)
    return make_optimizers(matrices, others, plan.rates)


def _backward(model: Callable[..., Any], inputs: torch.Tensor, labels: torch.Tensor) -> float:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(input_ids=inputs).logits
        loss = functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.item())


def _batch(tokens: torch.Tensor, plan: TargetPlan, step: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and labels of one step, both [sequences, `length`]."""
    draw = np.random.default_rng((plan.seed, step))
    starts = draw.integers(0, len(tokens) - length - 1, plan.batch_tokens // length)
    windows = torch.stack([tokens[start : start + length + 1] for start in starts])
    return windows[:, :-1], windows[:, 1:]
