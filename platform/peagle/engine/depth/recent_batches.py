"""Sizes of an engine's most recent batches."""

from collections import deque

# If many requests end at once, their successors arrive within these seconds, or these steps if steps are slower.
_FOLLOWED_S, _FOLLOWED_STEPS = 0.1, 3


class RecentBatches:
    """Schedule time and number of requests of each recent step."""

    def __init__(self) -> None:
        self._sizes: deque[tuple[float, int]] = deque()

    def add(self, scheduled_s: float, size: int) -> None:
        self._sizes.append((scheduled_s, size))

    def largest(self, now_s: float, ended_s: float) -> int:
        """Return the largest recent batch; 0 without one.

        Args:
            now_s: The current time.
            ended_s: When the last step ended.
        """
        kept = _FOLLOWED_STEPS if now_s - ended_s < _FOLLOWED_S else 0
        while len(self._sizes) > kept and now_s - self._sizes[0][0] >= _FOLLOWED_S:
            self._sizes.popleft()
        return max((size for _, size in self._sizes), default=0)
