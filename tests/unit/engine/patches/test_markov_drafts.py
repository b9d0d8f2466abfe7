"""When vLLM's drafter loads a Markov head, and when it uses it."""

from types import SimpleNamespace

import pytest

from support.paths import EMBEDDED

torch = pytest.importorskip("torch")

from peagle.engine.drafting.markov_head import MarkovHead, chained, chained_in_text  # noqa: E402
from peagle.engine.drafting.ngrams import BatchNgrams  # noqa: E402
from peagle.engine.patches import markov_drafts  # noqa: E402
from support.engines.markov import DEPTH, DRAFTS, HIDDEN, VOCABULARY, passed, texts, weights  # noqa: E402

HEAD = EMBEDDED / "p-eagle"


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


@pytest.mark.parametrize("on_cpu", [True, False])
@pytest.mark.parametrize("depth", [1, DEPTH])
@pytest.mark.parametrize(("has_one", "has_ngrams"), [(True, True), (True, False), (False, False)])
def test_vllms_drafter_asks_it_where_there_is_one_and_on_a_cpu_tells_how_sure_it_is(
    has_one: bool, has_ngrams: bool, depth: int, on_cpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip("vllm.v1.spec_decode.llm_base_proposer")
    markov_drafts.install()
    markov_drafts.install()
    monkeypatch.setattr(markov_drafts, "lays_out", lambda _proposer: on_cpu)
    logits, hidden = (each[:, :depth] for each in passed())
    markov = MarkovHead.of(weights())
    proposer = object.__new__(module.SpecDecodeBaseProposer)
    proposer.num_speculative_tokens = depth
    proposer.use_local_argmax_reduction = proposer.use_heterogeneous_vocab = False
    proposer.model = SimpleNamespace(compute_logits=lambda _states: logits.reshape(-1, VOCABULARY))
    proposer.peagle_markov = markov if has_one else None
    expected = chained(logits, hidden, markov) if has_one else logits.argmax(-1)
    sure = logits.softmax(-1).gather(-1, expected[..., None]).squeeze(-1)
    if has_ngrams:
        proposer.peagle_ngrams, proposer.peagle_ngram_bias_nats = BatchNgrams(), 2.0
        proposer.peagle_ngrams.of_each = texts
        expected, told = chained_in_text(logits, hidden, markov, texts(), 2.0)
        sure = torch.tensor(told)
    drafts = proposer._greedy_sample(hidden.reshape(-1, HIDDEN)).view(DRAFTS, depth)
    assert torch.equal(drafts, expected)
    if on_cpu:
        torch.testing.assert_close(torch.tensor(proposer.peagle_confidences), sure)
    else:
        assert has_ngrams or not hasattr(proposer, "peagle_confidences")
