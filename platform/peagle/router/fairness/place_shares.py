"""How many of a model's places one client may hold, so that some are left for those who come next.

Dynamic thresholds (Choudhury and Hahne, 1998): nobody holds more places than are free. One client that floods a model
gets half of its places, two a third each, and a share is always left.
"""

from collections import Counter


class PlaceShares:
    """Open requests by client, of one model in one ingress process."""

    def __init__(self) -> None:
        self._open: Counter[str] = Counter()

    def take(self, client: str, places: int) -> bool:
        """Take one of so many places; whether there was one for this client."""
        if self._open[client] >= places - self._open.total():
            return False
        self._open[client] += 1
        return True

    def give_back(self, client: str) -> None:
        """A request of the client's is over."""
        self._open[client] -= 1
        if not self._open[client]:
            del self._open[client]
