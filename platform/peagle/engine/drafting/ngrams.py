"""N-grams and their followers in the texts being generated: names, calls and whole lines repeat.

A parallel drafter reads the text before its drafts, but does not know which of its drafts precedes the next. Once that
token is chosen, the same few tokens often occur earlier in the text, and their follower is likely to follow again.
Prompt lookup (`ngram` in vLLM) drafts from this. Here it is a bias among the drafter's own candidates, for each token
of the matched n-gram. It costs a few dictionary lookups per draft.
"""

from collections.abc import Sequence
from typing import Any

NGRAM_TOKENS_MAX = 3
"""Longest n-gram in tokens; longer ones predict no better."""
TEXT_TOKENS_MAX = 8192
"""Tokens of a text that are indexed, up to twice as many: each takes about 0.4 kilobytes."""


class NgramIndex:
    """The n-grams of one text so far, from its token `start` on."""

    def __init__(self, start: int = 0) -> None:
        self.length = start
        """Tokens generated so far, including those skipped at the start."""
        self.size = 0
        """Tokens indexed."""
        self._last: tuple[int, ...] = ()
        self._followers: dict[tuple[int, ...], set[int]] = {}

    def read(self, tokens: Sequence[int]) -> None:
        """Index the next tokens of the text."""
        last, followers = self._last, self._followers
        for token in tokens:
            for first in range(len(last)):
                ngram = last[first:]
                if ngram in followers:
                    followers[ngram].add(token)
                else:
                    followers[ngram] = {token}
            last = (*last[1 - NGRAM_TOKENS_MAX :], token) if len(last) == NGRAM_TOKENS_MAX else (*last, token)
        self._last = last
        self.length += len(tokens)
        self.size += len(tokens)

    def followers(self, drafts: Sequence[int]) -> list[set[int]]:
        """Return the followers of the last token, the last two tokens, ..., of the text followed by `drafts`.

        There is one set for each n-gram found, each a subset of the one before it.
        """
        last = (*self._last, *drafts[-NGRAM_TOKENS_MAX:])
        found: list[set[int]] = []
        for tokens in range(1, min(len(last), NGRAM_TOKENS_MAX) + 1):
            behind = self._followers.get(last[-tokens:])
            if behind is None:
                break
            found.append(behind)
        return found


class BatchNgrams:
    """The n-grams of every request in an engine's batch."""

    def __init__(self) -> None:
        self._indices: dict[str, NgramIndex] = {}

    def read(self, batch: Any, written: Sequence[tuple[int, Sequence[int]]]) -> None:
        """Index the tokens of a step, and forget requests no longer in the batch.

        Args:
            batch: vLLM's `InputBatch`, without this step's tokens; earlier tokens are read from it.
            written: For each request in the batch, the position of the first token given to its drafter, and the
                tokens from there on. If more of a prompt is to come, the last token is not the one that follows.
        """
        indices = {}
        for row, (start, tokens) in enumerate(written):
            request, end = batch.req_ids[row], start + len(tokens)
            index = self._indices.get(request)
            if index is None or index.size + end - index.length > 2 * TEXT_TOKENS_MAX:
                index = NgramIndex(max(0, end - TEXT_TOKENS_MAX))
            known = min(end, int(batch.num_tokens_no_spec[row]))
            if index.length < known:
                index.read(batch.token_ids_cpu[row, index.length : known].tolist())
            index.read(tokens[index.length - start :])
            indices[request] = index
        self._indices = indices

    def of_each(self) -> list[NgramIndex]:
        """Return the requests' indices, in the order of the batch."""
        return list(self._indices.values())
