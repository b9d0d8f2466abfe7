"""Drafts that follow each other: a Markov head's bias, against speculators' own module, and where it is asked."""

from types import SimpleNamespace
from typing import Any

import pytest

from support.paths import EMBEDDED

torch = pytest.importorskip("torch")

from peagle.engine.drafting.ngrams import BatchNgrams, NgramIndex  # noqa: E402
from peagle.engine.patches import markov_drafts  # noqa: E402
from peagle.engine.patches.markov_drafts import CANDIDATES, MarkovHead, chained, chained_in_text, chains_of  # noqa: E402

HEAD = EMBEDDED / "p-eagle"
DRAFTS, DEPTH, VOCABULARY, HIDDEN, RANK = 5, 4, 40, 12, 6


def weights(scale: float = 1.0) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(3)
    return {
        "markov_w1.weight": torch.randn(VOCABULARY, RANK, generator=draw),
        "markov_w2.weight": torch.randn(VOCABULARY, RANK, generator=draw) * scale,
        "gate_proj.weight": torch.randn(RANK, HIDDEN + RANK, generator=draw),
        "gate_proj.bias": torch.randn(RANK, generator=draw),
    }


def passed() -> tuple[Any, Any]:
    """Logits and hidden states of a drafter's pass."""
    draw = torch.Generator().manual_seed(4)
    logits = torch.randn(DRAFTS, DEPTH, VOCABULARY, generator=draw)
    return logits, torch.randn(DRAFTS, DEPTH, HIDDEN, generator=draw)


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


def texts() -> list[NgramIndex]:
    draw = torch.Generator().manual_seed(5)
    found = []
    for _ in range(DRAFTS):
        text = NgramIndex()
        text.read(torch.randint(VOCABULARY, (400,), generator=draw).tolist())
        found.append(text)
    return found


def test_ngrams_count_for_what_they_are_said_to_and_for_nothing_without() -> None:
    logits, hidden = passed()
    markov = MarkovHead.of(weights())
    assert torch.equal(chained_in_text(logits, hidden, markov, texts(), 0.0), chained(logits, hidden, markov))
    for nats in (0.5, 2.0):
        drafts = chained_in_text(logits, hidden, markov, texts(), nats)
        candidates, scores = chains_of(logits, hidden, markov)
        assert torch.equal(drafts[:, 0], candidates[:, 0, 0])
        for draft, tokens, follows, text in zip(drafts.tolist(), candidates.tolist(), scores, texts(), strict=True):
            for depth in range(1, DEPTH):
                before = tokens[depth - 1].index(draft[depth - 1])
                gains = [
                    float(score) + nats * sum(token in found for found in text.followers(draft[:depth]))
                    for token, score in zip(tokens[depth], follows[depth - 1, before], strict=True)
                ]
                assert draft[depth] == tokens[depth][gains.index(max(gains))]
    assert not torch.equal(chained_in_text(logits, hidden, markov, texts(), 2.0), chained(logits, hidden, markov))


def test_what_has_followed_is_no_candidate_by_that_alone() -> None:
    logits, hidden = passed()
    drafts = chained_in_text(logits, hidden, MarkovHead.of(weights()), texts(), 1000.0)
    assert (logits.topk(CANDIDATES).indices == drafts[..., None]).any(-1).all()


@pytest.mark.parametrize("favoured", [3, 7])
def test_a_small_bias_counts_beside_large_logits_in_bfloat16_too(favoured: int) -> None:
    logits = torch.zeros(DRAFTS, DEPTH, VOCABULARY, dtype=torch.bfloat16)
    logits[..., [3, 7]] = 32.0  # where 0.1 more is no other number
    output = torch.zeros(VOCABULARY, RANK, dtype=torch.bfloat16)
    output[favoured] = 0.1 / RANK
    none = torch.zeros(VOCABULARY, RANK, dtype=torch.bfloat16)
    markov = MarkovHead(torch.ones_like(none), none, torch.zeros(RANK, HIDDEN, dtype=torch.bfloat16), output)
    drafts = chained(logits, torch.zeros(DRAFTS, DEPTH, HIDDEN, dtype=torch.bfloat16), markov)
    assert (drafts[:, 1:] == favoured).all()


@pytest.mark.parametrize(
    ("load_format", "options", "loads"),
    [("auto", {}, True), ("runai_streamer", {"concurrency": 16}, True), ("dummy", {}, False)],
)
def test_it_is_read_whatever_the_heads_own_weights_are_read_by(
    load_format: str, options: dict[str, int], loads: bool
) -> None:
    load = pytest.importorskip("vllm.config.load")
    config = load.LoadConfig(load_format=load_format, model_loader_extra_config=options)
    proposer = SimpleNamespace(
        parallel_drafting=True,
        draft_model_config=SimpleNamespace(model=str(HEAD), revision=None, hf_config=SimpleNamespace(markov_rank=128)),
        speculative_config=SimpleNamespace(draft_load_config=None),
        vllm_config=SimpleNamespace(load_config=config),
        device=torch.device("cpu"),
    )
    assert markov_drafts._has_one(proposer) is loads
    if loads:
        assert markov_drafts._load(proposer).output.shape == (2048, 128)


@pytest.mark.parametrize("depth", [1, DEPTH])
@pytest.mark.parametrize(("has_one", "has_ngrams"), [(True, True), (True, False), (False, False)])
def test_vllms_drafter_asks_it_where_there_is_one(has_one: bool, has_ngrams: bool, depth: int) -> None:
    module = pytest.importorskip("vllm.v1.spec_decode.llm_base_proposer")
    markov_drafts.install()
    markov_drafts.install()
    logits, hidden = (each[:, :depth] for each in passed())
    markov = MarkovHead.of(weights())
    proposer = object.__new__(module.SpecDecodeBaseProposer)
    proposer.num_speculative_tokens = depth
    proposer.use_local_argmax_reduction = proposer.use_heterogeneous_vocab = False
    proposer.model = SimpleNamespace(compute_logits=lambda _states: logits.reshape(-1, VOCABULARY))
    proposer.peagle_markov = markov if has_one else None
    expected = chained(logits, hidden, markov) if has_one else logits.argmax(-1)
    if has_ngrams:
        proposer.peagle_ngrams, proposer.peagle_ngram_bias_nats = BatchNgrams(), 2.0
        proposer.peagle_ngrams.of_each = texts
        expected = chained_in_text(logits, hidden, markov, texts(), 2.0)
    drafts = proposer._greedy_sample(hidden.reshape(-1, HIDDEN)).view(DRAFTS, depth)
    assert torch.equal(drafts, expected)
