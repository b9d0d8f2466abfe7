"""Where the drafter's cache has gaps, because steps ran without it: in requests, and in what they leave for others.

A request with a gap drafts no more. What it computed meanwhile stays in the prefix cache, which the target can use and
the drafter cannot: whoever drafts over a gap is right less often. So blocks with one are remembered, and a request that
is to draft computes them anew; one that is not uses them as they are.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request


class DrafterGaps:
    """Requests with a gap, by id, and cached blocks with one."""

    def __init__(self, cache: KVCacheManager) -> None:
        self._cache = cache
        # By request, up to which of its tokens all is as it should be, or was looked at.
        self._seen_tokens: dict[str, int] = {}
        # By block, under what it was cached: a block that now holds something else has no gap.
        self._hashes: dict[int, bytes] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._seen_tokens

    def __bool__(self) -> bool:
        return bool(self._seen_tokens)

    def among(self, request_ids: Iterable[str]) -> frozenset[str]:
        """Which of these have a gap."""
        return frozenset(filter(self._seen_tokens.__contains__, request_ids)) if self._seen_tokens else frozenset()

    def open(self, request: Request, tokens: int) -> None:
        """Behind its first `tokens` the drafter misses some of this request, which drafts no more."""
        self._seen_tokens.setdefault(request.request_id, tokens)

    def close(self, request: Request) -> None:
        """The request gives up its blocks: it has ended, or starts again without a gap."""
        self._remember(request.request_id)
        self._seen_tokens.pop(request.request_id, None)

    def forget(self) -> None:
        """Nothing is cached any more."""
        self._hashes.clear()

    def remember(self) -> None:
        """Note which blocks of those that have a gap are cached by now."""
        for request_id in self._seen_tokens:
            self._remember(request_id)

    def uncache_for(self, request: Request) -> None:
        """Take blocks that were noted out of the prefix cache where `request` would find them."""
        # More than one block may hold the same tokens.
        while self._hashes and (found := self._found_by(request)):
            self._cache.evict_blocks(found)
            for block in found:
                del self._hashes[block]

    def _found_by(self, request: Request) -> set[int]:
        blocks, _, _ = self._cache.get_computed_blocks(request)
        return {
            block.block_id
            for group in blocks.blocks
            for block in group
            if block.block_hash is not None and self._hashes.get(block.block_id) == block.block_hash
        }

    def _remember(self, request_id: str) -> None:
        """Note the blocks of a request that are cached by now, from where it was last looked at."""
        tokens = self._seen_tokens.get(request_id)
        if tokens is None or not self._cache.enable_caching:
            return
        reached = tokens
        for blocks, size in self._blocks_of(request_id):
            for number, block in enumerate(blocks[tokens // size :], start=tokens // size):
                if block.block_hash is not None:
                    self._hashes[block.block_id] = block.block_hash
                    reached = max(reached, number * size)
        self._seen_tokens[request_id] = reached

    def _blocks_of(self, request_id: str) -> Iterator[tuple[list[Any], int]]:
        """For each group of layers its blocks, and how many tokens each of them holds."""
        for manager in self._cache.coordinator.single_type_managers:
            yield manager.req_to_blocks.get(request_id, []), manager.block_size
