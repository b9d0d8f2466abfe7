"""Drafts that depend on each other: a Markov head's bias, compared with speculators' own module."""

import pytest

torch = pytest.importorskip("torch")

from peagle.engine.drafting.markov_head import CANDIDATES, MarkovHead, chained, chained_in_text, chains_of  # noqa: E402
from support.engines.markov import DEPTH, DRAFTS, HIDDEN, RANK, VOCABULARY, passed, texts, weights  # noqa: E402


def test_each_draft_follows_the_one_before_as_in_training() -> None:
    model_definitions = pytest.importorskip("speculators.models.dspark.model_definitions")
    trained = model_definitions.MarkovHead(
        verifier_vocab_size=VOCABULARY,
        draft_vocab_size=VOCABULARY,
        markov_rank=RANK,
        hidden_size=HIDDEN,
        head_type="gated",
    )
    trained.load_state_dict(weights())
    logits, hidden = passed()
    drafts = chained(logits, hidden, MarkovHead.of(weights()))
    assert not torch.equal(drafts, logits.argmax(-1))
    bias = trained.block_bias(prev_token_ids=drafts[:, :-1], hidden_states=hidden[:, 1:])
    assert torch.equal(drafts[:, 0], logits[:, 0].argmax(-1))
    unlikely = logits[:, 1:] < logits[:, 1:].topk(CANDIDATES).values[..., -1:]
    assert torch.equal(drafts[:, 1:], (logits[:, 1:] + bias).masked_fill(unlikely, -torch.inf).argmax(-1))


def test_a_shorter_draft_is_the_beginning_of_a_longer_one() -> None:
    logits, hidden = passed()
    markov = MarkovHead.of(weights())
    for depth in range(1, DEPTH):
        shorter = chained(logits[:, :depth], hidden[:, :depth], markov)
        assert torch.equal(shorter, chained(logits, hidden, markov)[:, :depth])


def test_a_head_that_has_learned_nothing_changes_nothing() -> None:
    logits, hidden = passed()
    assert torch.equal(chained(logits, hidden, MarkovHead.of(weights(scale=0.0))), logits.argmax(-1))


def test_ngrams_count_for_what_they_are_said_to_and_for_nothing_without() -> None:
    logits, hidden = passed()
    markov = MarkovHead.of(weights())
    assert torch.equal(chained_in_text(logits, hidden, markov, texts(), 0.0)[0], chained(logits, hidden, markov))
    for nats in (0.5, 2.0):
        drafts, confidences = chained_in_text(logits, hidden, markov, texts(), nats)
        candidates, scores = chains_of(logits, hidden, markov)
        assert torch.equal(drafts[:, 0], candidates[:, 0, 0])
        firsts = logits[:, 0].softmax(-1).amax(-1).tolist()
        assert [sure[0] for sure in confidences] == pytest.approx(firsts)
        each = zip(drafts.tolist(), confidences, candidates.tolist(), scores, texts(), strict=True)
        for draft, sure, tokens, follows, text in each:
            for depth in range(1, DEPTH):
                before = tokens[depth - 1].index(draft[depth - 1])
                gains = [
                    float(score) + nats * sum(token in found for found in text.followers(draft[:depth]))
                    for token, score in zip(tokens[depth], follows[depth - 1, before], strict=True)
                ]
                assert draft[depth] == tokens[depth][gains.index(max(gains))]
                assert sure[depth] == pytest.approx(float(torch.tensor(gains).softmax(-1).max()))
    assert not torch.equal(chained_in_text(logits, hidden, markov, texts(), 2.0)[0], chained(logits, hidden, markov))


def test_a_follower_that_is_not_a_candidate_is_not_chosen() -> None:
    logits, hidden = passed()
    drafts, _ = chained_in_text(logits, hidden, MarkovHead.of(weights()), texts(), 1000.0)
    assert (logits.topk(CANDIDATES).indices == drafts[..., None]).any(-1).all()


@pytest.mark.parametrize("favoured", [3, 7])
def test_a_small_bias_counts_beside_large_logits_in_bfloat16_too(favoured: int) -> None:
    logits = torch.zeros(DRAFTS, DEPTH, VOCABULARY, dtype=torch.bfloat16)
    logits[..., [3, 7]] = 32.0  # at which bfloat16 cannot represent 0.1 more
    output = torch.zeros(VOCABULARY, RANK, dtype=torch.bfloat16)
    output[favoured] = 0.1 / RANK
    none = torch.zeros(VOCABULARY, RANK, dtype=torch.bfloat16)
    markov = MarkovHead(torch.ones_like(none), none, torch.zeros(RANK, HIDDEN, dtype=torch.bfloat16), output)
    drafts = chained(logits, torch.zeros(DRAFTS, DEPTH, HIDDEN, dtype=torch.bfloat16), markov)
    assert (drafts[:, 1:] == favoured).all()
