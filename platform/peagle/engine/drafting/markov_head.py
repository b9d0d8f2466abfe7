"""Markov head: the dependency between consecutive drafted tokens that a parallel drafter lacks.

P-EAGLE drafts all positions in one pass, each from a mask. No position knows the token chosen before it, so later ones
are accepted less often than those of a sequential drafter. As in DSpark, a Markov head adds to each position's logits a
bias that depends on the previous token: of low rank, and gated by the position's own hidden state. The drafter still
needs one pass, and verification does not change.

If enabled, a draft token also gains for each n-gram that preceded it earlier in the text (`ngrams.py`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import exp
from typing import Self

import torch
from torch import Tensor
from torch.nn.functional import linear

from peagle.engine.drafting.ngrams import NgramIndex

CANDIDATES = 8
"""Number of likeliest tokens of each position among which the bias chooses."""


@dataclass(frozen=True, slots=True)
class MarkovHead:
    """Bias after token t at hidden state h: `(sigmoid(gates[t] + h @ hidden.T) * tokens[t]) @ output.T`.

    Attributes:
        tokens: Embedding of the previous token, [vocabulary, rank].
        gates: The previous token's contribution to the gate, [vocabulary, rank].
        hidden: The hidden state's contribution to the gate, [rank, hidden].
        output: Embedding of the next token, [vocabulary, rank].
    """

    tokens: Tensor
    gates: Tensor
    hidden: Tensor
    output: Tensor

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> Self:
        """Build from the weights of speculators' gated `MarkovHead`, by their names there."""
        tokens, gate = weights["markov_w1.weight"], weights["gate_proj.weight"]
        size = gate.shape[1] - gate.shape[0]
        gates = linear(tokens, gate[:, size:], weights["gate_proj.bias"])
        return cls(tokens, gates, gate[:, :size].contiguous(), weights["markov_w2.weight"])


def chained(logits: Tensor, hidden_states: Tensor, markov: MarkovHead) -> Tensor:
    """Return the greedy drafts, each token chosen given the previous one: int [drafts, depth].

    Args:
        logits, hidden_states: As in `chains_of`.
    """
    candidates, scores = chains_of(logits, hidden_states, markov)
    follows = scores.argmax(-1)
    chosen = [candidates.new_zeros(len(candidates), 1)]  # the best candidate of the first position
    for depth in range(follows.shape[1]):
        chosen.append(follows[:, depth].gather(1, chosen[-1]))
    return candidates.gather(2, torch.stack(chosen, dim=1)).squeeze(-1)


def chained_in_text(
    logits: Tensor, hidden_states: Tensor, markov: MarkovHead, texts: Iterable[NgramIndex], ngram_bias_nats: float
) -> tuple[Tensor, list[list[float]]]:
    """Return the same with an n-gram bias: int [drafts, depth], and the probability of each token.

    The first draft gets no bias, since the drafter has seen the token before it.

    Args:
        texts: The text before each draft; each is used before the next is requested.
        ngram_bias_nats: Gain of a token for each token of the n-gram that it has followed before.
    """
    candidates, scores = chains_of(logits, hidden_states, markov)
    firsts = logits[:, 0].float().softmax(-1).amax(-1).tolist()
    drafts, confidences = [], []
    for tokens, follows, first, text in zip(candidates.tolist(), scores.tolist(), firsts, texts, strict=True):
        best, draft, confidence = 0, [tokens[0][0]], [first]
        for behind, gains in zip(tokens[1:], follows, strict=True):
            found = gains[best]
            for followers in text.followers(draft):
                found = [
                    gain + ngram_bias_nats if token in followers else gain
                    for gain, token in zip(found, behind, strict=True)
                ]
            most = max(found)
            best = found.index(most)
            draft.append(behind[best])
            confidence.append(1.0 / sum(exp(gain - most) for gain in found))  # among the candidates
        drafts.append(draft)
        confidences.append(confidence)
    return candidates.new_tensor(drafts), confidences


def chains_of(logits: Tensor, hidden_states: Tensor, markov: MarkovHead) -> tuple[Tensor, Tensor]:
    """Choose each position's likeliest tokens as candidates, and score every pair of neighbouring candidates.

    Scoring all pairs at once makes going from token to token only a lookup.

    Args:
        logits: Of each position independently, [drafts, depth, vocabulary]. The first follows a known token.
        hidden_states: The hidden states behind the logits, [drafts, depth, hidden].

    Returns:
        The candidates, the best first, int [drafts, depth, candidates]. The score in nats of each after each candidate
        of the previous position, float32 [drafts, depth - 1, candidates before, candidates].
        position before, in nats, float32 [drafts, depth - 1, candidates before, candidates].
    """
    # A CPU sorts float32 several times faster.
    logits, hidden_states = logits.to(markov.output.dtype), hidden_states.to(markov.hidden.dtype)
    alone, candidates = logits.topk(min(CANDIDATES, logits.shape[-1]), dim=-1)
    before, behind = candidates[:, :-1], candidates[:, 1:]
    gates = linear(hidden_states[:, 1:], markov.hidden)
    gated = (markov.gates[before] + gates[:, :, None]).sigmoid_().mul_(markov.tokens[before])
    bias = gated @ markov.output[behind].transpose(-1, -2)
    # In bfloat16 a small bias would be lost next to a large logit.
    return candidates, bias.float() + alone[:, 1:, None].float()
