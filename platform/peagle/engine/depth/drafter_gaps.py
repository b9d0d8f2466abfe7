"""Gaps in the drafter's KV cache, left by steps that ran without it: in requests and in the prefix cache.

A request with a gap no longer drafts. Its blocks stay in the prefix cache, which the target can use but the drafter
cannot: drafts over a gap are accepted less often. So blocks with a gap are remembered. A request that will draft
recomputes them; other requests use them unchanged.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.request import Request


class DrafterGaps:
    """Requests and cached blocks with a gap."""

    def __init__(self, cache: KVCacheManager) -> None:
        self._cache = cache
        # By request, the number of leading tokens without a gap or already checked.
        self._seen_tokens: dict[str, int] = {}
        # Hash of each block when it was cached: a block that now holds other tokens has no gap.
        self._hashes: dict[int, bytes] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._seen_tokens

    def __bool__(self) -> bool:
        return bool(self._seen_tokens)

    def among(self, request_ids: Iterable[str]) -> frozenset[str]:
        """Return those of the requests that have a gap."""
        return frozenset(filter(self._seen_tokens.__contains__, request_ids)) if self._seen_tokens else frozenset()

    def open(self, request: Request, tokens: int) -> None:
        """Record that the drafter lacks this request's tokens beyond the first `tokens`; it no longer drafts."""
        self._seen_tokens.setdefault(request.request_id, tokens)

    def close(self, request: Request) -> None:
        """Close a request that gives up its blocks: it has ended, or restarts without a gap."""
        self._remember(request.request_id)
        self._seen_tokens.pop(request.request_id, None)

    def forget(self) -> None:
        """Forget all blocks after the prefix cache was emptied."""
        self._hashes.clear()

    def remember(self) -> None:
        """Record which blocks with a gap are cached by now."""
        for request_id in self._seen_tokens:
            self._remember(request_id)

    def uncache_for(self, request: Request) -> None:
        """Evict recorded blocks from the prefix cache if `request` would find them."""
        # Several blocks may hold the same tokens.
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
        """Record the blocks of a request that are cached by now, from the last checked position."""
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
        """Yield the blocks of each group of layers, and the tokens per block."""
        for manager in self._cache.coordinator.single_type_managers:
            yield manager.req_to_blocks.get(request_id, []), manager.block_size
