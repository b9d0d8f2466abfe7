"""A Markov head: the tie between one drafted token and the next, which a parallel drafter lacks.

P-EAGLE drafts all positions in one pass, each from a mask, so none knows what was chosen before it, and later ones are
right less often than those of a drafter that goes token by token. A Markov head adds to each position's logits a bias
that depends on the token chosen before it, as DSpark does: of low rank, and gated by the position's own hidden state.
The drafter's pass stays one, and the target verifies as ever.

Where it is asked for, a draft also gains by every token of an n-gram that has gone on so in the text before
(`ngrams.py`).
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
"""Of each position: the bias chooses among its so many most likely tokens."""


@dataclass(frozen=True, slots=True)
class MarkovHead:
    """The bias behind token t at hidden state h: `(sigmoid(gates[t] + h @ hidden.T) * tokens[t]) @ output.T`.

    Attributes:
        tokens: Of the token before, [vocabulary, rank].
        gates: What that token adds to the gate, [vocabulary, rank].
        hidden: What the hidden state adds to it, [rank, hidden].
        output: Of the token that follows, [vocabulary, rank].
    """

    tokens: Tensor
    gates: Tensor
    hidden: Tensor
    output: Tensor

    @classmethod
    def of(cls, weights: Mapping[str, Tensor]) -> Self:
        """From the weights of speculators' gated `MarkovHead`, by their names there."""
        tokens, gate = weights["markov_w1.weight"], weights["gate_proj.weight"]
        size = gate.shape[1] - gate.shape[0]
        gates = linear(tokens, gate[:, size:], weights["gate_proj.bias"])
        return cls(tokens, gates, gate[:, :size].contiguous(), weights["markov_w2.weight"])


def chained(logits: Tensor, hidden_states: Tensor, markov: MarkovHead) -> Tensor:
    """The greedy drafts, each token chosen behind the one before: int [drafts, depth].

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
    """The same where a draft gains by what has been written: int [drafts, depth], and the probability of each token.

    The first draft does not gain: it follows a token that the drafter has seen.

    Args:
        texts: What each draft goes on from; each is looked at before the next is asked for.
        ngram_bias_nats: What a token gains for each token of the n-gram that it has followed before.
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
    """Each position's most likely tokens are its candidates, and the bias between those of neighbours is taken at once,
    for all pairs: what is left for going from token to token is a look at which one follows.

    Args:
        logits: Of each position by itself, [drafts, depth, vocabulary]. The first follows a token that is known.
        hidden_states: What they were made from, [drafts, depth, hidden].

    Returns:
        The candidates, the best first, int [drafts, depth, candidates]. What each has behind each candidate of the
        position before, in nats, float32 [drafts, depth - 1, candidates before, candidates].
    """
    # In float32 a CPU sorts several times as quickly.
    logits, hidden_states = logits.to(markov.output.dtype), hidden_states.to(markov.hidden.dtype)
    alone, candidates = logits.topk(min(CANDIDATES, logits.shape[-1]), dim=-1)
    before, behind = candidates[:, :-1], candidates[:, 1:]
    gates = linear(hidden_states[:, 1:], markov.hidden)
    gated = (markov.gates[before] + gates[:, :, None]).sigmoid_().mul_(markov.tokens[before])
    bias = gated @ markov.output[behind].transpose(-1, -2)
    # In bfloat16 a small bias would vanish beside a large logit.
    return candidates, bias.float() + alone[:, 1:, None].float()
