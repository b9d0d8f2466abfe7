"""Shape and schedule of a head, and the targets for which heads can be trained."""

from dataclasses import dataclass
from typing import Literal

from peagle.drafter.train.training import Rates
from peagle.errors import ConfigError

Method = Literal["p-eagle", "eagle3"]
TARGET_LAYERS_MIN = 6
# Targets with Llama's embedding, final norm and output layer, which a head reuses.
TARGET_TYPES = ("gpt_oss", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
OUT_OF_ORDER = "vLLM gives a head the states of its tapped layers in the order of the layers"
HEAD_RATES = Rates(matrix=6e-3, other=2e-3, warmup_steps=50, decay_steps=2800, weight_decay=0.01)


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """Shape and schedule of a head. Both methods use the same text in the same order.

    `trained_depth` is the number of tokens that it learns to draft. `depth_ratio` is the share of positions that each
    deeper level keeps of the previous one, at least `depth_ratio_min` of all (COD sampling, arXiv 2602.01469).
    `tapped_layers` are the target layers whose inputs it reads; by default those of `tapped_layers_of`. Most steps use
    short crops, because attention over all depths of a row grows with the square of its length; one step in
    `whole_row_every` uses whole rows, for longer context. With `partitions` above 1 the backward pass of a P-EAGLE row
    runs in that many chunks, for rows that exceed the memory; gradients are the same. `confidence_floor` enables
    weights by each position's gain in acceptance length (`loss.py`); with None all weigh the same. `start` is a folder
    with the weights from which it continues. `markov_rank` is the rank of P-EAGLE's Markov head (`markov_drafts.py`);
    with 0 no draft depends on the one before it. With a Markov head a draft gains `ngram_bias_nats` for each token of
    an n-gram that it has followed before; training does not use it. With `frozen` only the Markov head and the output
    matrix are trained, which takes less time and less text.
    """

    method: Method
    layers: int
    trained_depth: int
    markov_rank: int = 0
    ngram_bias_nats: float = 0.0
    start: str | None = None
    frozen: bool = False
    tapped_layers: tuple[int, ...] | None = None
    depth_ratio: float = 0.8
    depth_ratio_min: float = 0.4
    confidence_floor: float | None = 0.5
    generated_ratio: float = 0.8
    tokens_per_step: int = 832
    crop_tokens: int = 208
    whole_row_every: int = 4
    partitions: int = 1
    steps: int = 11_000
    rates: Rates = HEAD_RATES
    seed: int = 11


# EAGLE-3 runs its one layer over every position once per depth; P-EAGLE runs its four layers once over the sampled
# positions. A training step costs about the same. When drafting, P-EAGLE runs once, so it can afford more layers.
HEAD_PLANS = {
    "p-eagle": HeadPlan("p-eagle", layers=4, trained_depth=8, markov_rank=128, ngram_bias_nats=0.85),
    "eagle3": HeadPlan("eagle3", layers=1, trained_depth=7),
}


def tapped_layers_of(layers: int) -> tuple[int, int, int]:
    """Return an early, a middle and the last layer of a target with `layers` layers (as in arXiv 2602.01469).

    Raises ConfigError if these are not three distinct layers.
    """
    if layers < TARGET_LAYERS_MIN:
        raise ConfigError(
            "target.num_hidden_layers",
            layers,
            "it is too shallow to tap an early, a middle and a late layer",
            f"Use a target of at least {TARGET_LAYERS_MIN} layers.",
        )
    return 2, layers // 2, layers - 1
