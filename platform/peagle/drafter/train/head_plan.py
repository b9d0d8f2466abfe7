"""Shape and schedule of a head, and what of a target one can be trained for."""

from dataclasses import dataclass
from typing import Literal

from peagle.drafter.train.training import Rates
from peagle.errors import ConfigError

Method = Literal["p-eagle", "eagle3"]
TARGET_LAYERS_MIN = 6
# Targets that embed, norm their last states and turn them into logits as Llama does: a head takes that over from them.
TARGET_TYPES = ("gpt_oss", "llama", "mistral", "mixtral", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
OUT_OF_ORDER = "vLLM gives a head the states of the layers that it taps from the first to the last"
HEAD_RATES = Rates(matrix=6e-3, other=2e-3, warmup_steps=50, decay_steps=2800, weight_decay=0.01)


@dataclass(frozen=True, slots=True)
class HeadPlan:
    """Shape and schedule of a head. Both methods see the same text in the same order.

    `trained_depth` is how many tokens it learns to draft, `depth_ratio` the share of positions that each further depth
    keeps of the one before, at least `depth_ratio_min` of all (COD sampling, arXiv 2602.01469), `tapped_layers` whose
    inputs in the target it sees; by default those of `tapped_layers_of`. Most steps see short crops, because attention
    over all depths of a row grows with the square of its length; one step in `whole_row_every` sees whole rows, for
    what lies further back. With `partitions` above 1 a row of P-EAGLE's goes backward in that many chunks, which a row
    too long for the memory needs; its gradients are the same. `confidence_floor` weighs positions by what the
    acceptance length gains by them (`loss.py`); without it all weigh the same. `start` is the folder of a head
    whose weights it goes on from, instead of new ones. `markov_rank` is that of P-EAGLE's Markov head
    (`markov_drafts.py`); without one, 0, no draft knows the one before it. Beside a Markov head a draft gains
    `ngram_bias_nats` for each token of an n-gram that it has followed before; nothing learns by it. With `frozen` only
    the Markov head and the output matrix learn, which takes less time and less text.
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


# EAGLE-3 passes its one layer over every position, once for each depth, P-EAGLE its four over those sampled, once: a
# step is about the same work for both. Drafting, P-EAGLE passes once, and so affords the layers.
HEAD_PLANS = {
    "p-eagle": HeadPlan("p-eagle", layers=4, trained_depth=8, markov_rank=128, ngram_bias_nats=0.85),
    "eagle3": HeadPlan("eagle3", layers=1, trained_depth=7),
}


def tapped_layers_of(layers: int) -> tuple[int, int, int]:
    """An early, a middle and the last layer of a target of `layers` layers (as in arXiv 2602.01469).

    Raises ConfigError where they would not be three distinct ones.
    """
    if layers < TARGET_LAYERS_MIN:
        raise ConfigError(
            "target.num_hidden_layers",
            layers,
            "it is too shallow to tap an early, a middle and a late layer",
            f"Take a target of at least {TARGET_LAYERS_MIN} layers.",
        )
    return 2, layers // 2, layers - 1
