"""How large an engine's last batches were."""

from collections import deque

# Where many of a batch end at once, those who follow come within so long, or so many steps where these take longer.
_FOLLOWED_S, _FOLLOWED_STEPS = 0.1, 3


class RecentBatches:
    """When each of the last steps was scheduled, and how many requests it had."""

    def __init__(self) -> None:
        self._sizes: deque[tuple[float, int]] = deque()

    def add(self, scheduled_s: float, size: int) -> None:
        self._sizes.append((scheduled_s, size))

    def largest(self, now_s: float, ended_s: float) -> int:
        """The largest of the last moment; 0 where there was none.

        Args:
            ended_s: When the last step ended.
        """
        kept = _FOLLOWED_STEPS if now_s - ended_s < _FOLLOWED_S else 0
        while len(self._sizes) > kept and now_s - self._sizes[0][0] >= _FOLLOWED_S:
            self._sizes.popleft()
        return max((size for _, size in self._sizes), default=0)
