"""Limits how many of a model's places one client may hold, so that some remain free for other clients.

Dynamic thresholds (Choudhury and Hahne, 1998): no client holds more places than are free. One client that floods a
model gets half of its places, two get a third each, and a share always remains free.
"""

from collections import Counter


class PlaceShares:
    """Open requests by client, for one model in one ingress process."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def take(self, client: str, places: int) -> bool:
        """Take one of `places` places; return whether this client could get one."""
        if self._open[client] >= places - self._open.total():
            return False
        self._open[client] += 1
        return True

    def give_back(self, client: str) -> None:
        """Free the place of a request that has ended."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
