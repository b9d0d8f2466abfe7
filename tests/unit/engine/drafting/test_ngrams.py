"""Followers of n-grams: the index of one text, and of an engine's batch."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from peagle.engine.drafting import ngrams
from peagle.engine.drafting.ngrams import NGRAM_TOKENS_MAX, BatchNgrams, NgramIndex

TOKENS = st.lists(st.integers(0, 4), max_size=40)


def naive(text: list[int], drafts: list[int]) -> list[set[int]]:
    """Search every position of the text."""
    whole, found = [*text, *drafts], []
    for length in range(1, min(NGRAM_TOKENS_MAX, len(whole)) + 1):
        last = whole[-length:]
        places = range(len(text) - length)
        found.append({text[at + length] for at in places if text[at : at + length] == last})
    return [followers for followers in found if followers]


@given(TOKENS, st.lists(st.integers(0, 4), max_size=7), st.integers(1, 9))
def test_followers_are_those_of_the_longest_ngrams_in_the_text(text: list[int], drafts: list[int], by: int) -> None:
    index = NgramIndex()
    for start in range(0, len(text), by):
        index.read(text[start : start + by])
    assert index.length == len(text)
    assert index.followers(drafts) == naive(text, drafts)


def test_skipped_tokens_have_no_followers() -> None:
    index = NgramIndex(start=10)
    index.read([3, 1])
    assert (index.length, index.size) == (12, 2)
    assert index.followers([]) == []
    assert index.followers([3]) == [{1}]


def batch(**texts: list[int]) -> SimpleNamespace:
    """Return an engine's batch of requests, with room after the known tokens of their texts."""
    tokens, lengths = np.full((len(texts), 64), -1, dtype=np.int32), [len(text) for text in texts.values()]
    for row, text in enumerate(texts.values()):
        tokens[row, : len(text)] = text
    return SimpleNamespace(req_ids=list(texts), token_ids_cpu=tokens, num_tokens_no_spec=np.array(lengths))


def test_every_request_has_the_text_of_its_own_wherever_it_stands_in_the_batch() -> None:
    known = BatchNgrams()
    known.read(batch(a=[1, 2], b=[7, 8]), [(1, [2, 1]), (1, [8, 7])])
    known.read(batch(b=[7, 8, 7], a=[1, 2, 1]), [(3, [9]), (3, [2, 3])])
    b, a = known.of_each()
    assert (b.length, a.length) == (4, 5)
    assert b.followers([7]) == naive([7, 8, 7, 9], [7])  # the first token was read from the batch
    assert a.followers([1]) == naive([1, 2, 1, 2, 3], [1])
    known.read(batch(a=[1, 2, 1, 2, 3]), [(5, [4])])
    assert [index.length for index in known.of_each()] == [6]


@pytest.mark.parametrize("start", [2, 3, 5, 6])
def test_tokens_passed_twice_are_indexed_once(start: int) -> None:
    text = [1, 2, 3, 1, 2, 3]
    known = BatchNgrams()
    known.read(batch(a=text), [(0, text[:5])])
    known.read(batch(a=text), [(start, [*text[start:], 4])])
    (index,) = known.of_each()
    assert index.length == 7
    assert index.followers([1, 2]) == naive([*text, 4], [1, 2])


def test_a_cached_prompt_is_read_from_the_batch() -> None:
    text = list(range(10, 40))
    known = BatchNgrams()
    known.read(batch(a=text), [(28, [38, 39])])
    assert known.of_each()[0].followers([10]) == [{11}]


@pytest.mark.parametrize("chunk", [1, 2, 3, 5])
def test_a_prompt_that_comes_in_chunks_is_read_as_it_stands(chunk: int) -> None:
    text = [1, 2, 3, 4, 5]
    known = BatchNgrams()
    for start in range(0, len(text), chunk):
        # Before the last chunk of a prompt, the drafter gets the prompt's last token as the next one.
        new = [*text[start + 1 : start + chunk], 9 if start + chunk >= len(text) else text[-1]]
        known.read(batch(a=text), [(start + 1, new)])
    (index,) = known.of_each()
    assert index.length == 6
    assert [index.followers([token]) for token in (1, 2, 3, 4)] == [[{2}], [{3}], [{4}], [{5}]]
    assert index.followers([]) == []
    assert index.followers([4, 5]) == naive([*text, 9], [4, 5])


@pytest.mark.parametrize("step", [1, 3, 8, 24])
def test_of_a_long_text_the_end_counts(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(ngrams, "TEXT_TOKENS_MAX", 8)
    known, text = BatchNgrams(), list(range(10, 58))
    for start in range(0, len(text), step):
        known.read(batch(a=text[:start]), [(start, text[start : start + step])])
        (index,) = known.of_each()
        end = start + step
        assert (index.length, index.followers([text[end - 2]])) == (end, [{text[end - 1]}] if end > 1 else [])
        assert min(end, 8) <= index.size <= 16
        assert all(index.followers([token]) for token in text[max(0, end - 8) : end - 1])
