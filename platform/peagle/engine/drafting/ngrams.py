"""What has followed what in the texts that are being written: names, calls and whole lines come again.

A parallel drafter reads the text before its drafts, and does not know which of its drafts precedes the next. Once that
one is chosen, the same few tokens often stand further up, and what followed them there is likely to follow here: what
prompt lookup drafts from (`ngram` in vLLM). Here it is a bias among the drafter's own candidates, for each token of the
n-gram that is found, and what it costs is a few looks into a dictionary for each draft.
"""

from collections.abc import Sequence
from typing import Any

NGRAM_TOKENS_MAX = 3
"""A longer n-gram says no more than one of this many tokens."""
TEXT_TOKENS_MAX = 8192
"""Of a text its last so many tokens count, or up to twice as many: each takes about 0.4 kilobytes."""


class NgramIndex:
    """The n-grams of one text, as far as it is written, from its token `start` on."""

    def __init__(self, start: int = 0) -> None:
        self.length = start
        """How many tokens are written: those read, and those before them that were left out."""
        self.size = 0
        """How many were read."""
        self._last: tuple[int, ...] = ()
        self._followers: dict[tuple[int, ...], set[int]] = {}

    def read(self, tokens: Sequence[int]) -> None:
        """Take in what is written next."""
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
        """What has followed the last token, the last two, ..., of the text with `drafts` behind it.

        As many sets as n-grams are found, each within the one before it.
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
        """Take in what a step has written, and forget what is no longer in the batch.

        Args:
            batch: vLLM's `InputBatch`, before this step's tokens are in it; what is in it is read from there.
            written: Of each request in the batch, the position of the first token that its drafter is given, and the
                tokens from there on. Where more of a prompt is still to come, the last is not what follows.
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
        """The requests' indices, in the batch's order."""
        return list(self._indices.values())
