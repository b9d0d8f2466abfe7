"""Makes vLLM's drafter choose its drafts with a Markov head and n-grams, if the head has them (`markov_head.py`).

N-grams are looked up token by token, which is fast on a CPU but not on a GPU, so a GPU does not use them.

The weights lie in their own folder within the head's, where vLLM does not look: without peagle it serves the same head
without them.
"""

import functools
import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from peagle.engine.checkpoint import MARKOV_FOLDER, MARKOV_RANK_KEY, Folder, read_ngram_bias
from peagle.engine.drafting.markov_head import MarkovHead, chained, chained_in_text
from peagle.engine.drafting.ngrams import BatchNgrams
from peagle.engine.patches.cpu_draft_inputs import lays_out

_MARK = "_peagle_markov_drafts"


def install() -> None:
    """Patch this process's drafter. Idempotent."""
    # Imported here: the scheduler's process has no drafter, and the import takes seconds.
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer

    if hasattr(SpecDecodeBaseProposer, _MARK):
        return
    create, load = SpecDecodeBaseProposer.__init__, SpecDecodeBaseProposer.load_model
    sample = SpecDecodeBaseProposer._greedy_sample

    @functools.wraps(create)
    def init(proposer: Any, *args: Any, **kwargs: Any) -> None:
        create(proposer, *args, **kwargs)
        bound = inspect.signature(create).bind(proposer, *args, **kwargs)
        proposer.peagle_runner = bound.arguments.get("runner")

    @functools.wraps(load)
    def load_model(proposer: Any, target_model: Any) -> None:
        load(proposer, target_model)
        proposer.peagle_markov = _load(proposer) if _has_one(proposer) else None
        proposer.peagle_ngrams = None
        if proposer.peagle_markov and lays_out(proposer):
            model = proposer.draft_model_config
            nats = read_ngram_bias(Folder(Path(model.model), "drafter.source"), model.hf_config.to_dict())
            proposer.peagle_ngrams, proposer.peagle_ngram_bias_nats = BatchNgrams() if nats else None, nats

    @functools.wraps(sample)
    def greedy_sample(proposer: Any, hidden_states: Tensor) -> Tensor:
        markov, depth = getattr(proposer, "peagle_markov", None), proposer.num_speculative_tokens
        tells = lays_out(proposer)
        if not tells and (markov is None or depth < 2):
            alone: Tensor = sample(proposer, hidden_states)
            return alone
        logits = proposer.model.compute_logits(hidden_states)
        if markov is None or depth < 2:
            drafts = _by_draft(logits, depth).argmax(-1)
        else:
            made = _by_draft(logits, depth), _by_draft(hidden_states, depth), markov
            if ngrams := getattr(proposer, "peagle_ngrams", None):
                texts, nats = ngrams.of_each(), proposer.peagle_ngram_bias_nats
                drafts, proposer.peagle_confidences = chained_in_text(*made, texts, nats)
                return drafts.flatten()
            drafts = chained(*made)
        if tells:
            proposer.peagle_confidences = confidences(_by_draft(logits, depth), drafts)
        return drafts.flatten()

    SpecDecodeBaseProposer.__init__ = init
    SpecDecodeBaseProposer.load_model = load_model
    SpecDecodeBaseProposer._greedy_sample = greedy_sample
    setattr(SpecDecodeBaseProposer, _MARK, True)


def confidences(logits: Tensor, drafts: Tensor) -> list[list[float]]:
    """Return the drafter's probability of each drafted token, ignoring its dependency on the previous one.

    Args:
        logits: [drafts, depth, vocabulary].
        drafts: int [drafts, depth].
    """
    logits = logits.float()
    chosen = logits.gather(-1, drafts[..., None]).squeeze(-1)
    told: list[list[float]] = (chosen - logits.logsumexp(-1)).exp().tolist()
    return told


def _by_draft(rows: Tensor, depth: int) -> Tensor:
    """View [drafts * depth, size] as [drafts, depth, size]."""
    return rows.view(-1, depth, rows.shape[-1])


def _has_one(proposer: Any) -> bool:
    """Return whether the drafter comes with a Markov head; dummy weights have none."""
    rank = getattr(proposer.draft_model_config.hf_config, MARKOV_RANK_KEY, None)
    return bool(proposer.parallel_drafting and rank and _load_config(proposer).load_format != "dummy")


def _load_config(proposer: Any) -> Any:
    return proposer.speculative_config.draft_load_config or proposer.vllm_config.load_config


def _load(proposer: Any) -> MarkovHead:
    """Load the Markov head from the source of the drafter's weights, by vLLM's safetensors loader.

    Loaders of other formats only load whole models.
    """
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    model = proposer.draft_model_config
    source = DefaultModelLoader.Source(model.model, model.revision, subfolder=MARKOV_FOLDER)
    given = _load_config(proposer)
    loader = DefaultModelLoader(LoadConfig(load_format="safetensors", download_dir=given.download_dir))
    dtype = torch.float32 if proposer.device.type == "cpu" else proposer.dtype
    return MarkovHead.of(
        {name: weight.to(proposer.device, dtype) for name, weight in loader._get_weights_iterator(source)}
    )
