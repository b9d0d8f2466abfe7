"""How long a model whose queue is full is expected to stay so: dispatch says it, and clients are told it.

Both run in the ingress process. Serve refuses a request before dispatch sees it, but the requests that do wait are
decided on again several times a second, and each decision that finds no place says when it expects one.
"""

import math
import time

FRESH_S = 5.0
"""What was expected longer ago than this is not believed any more."""


class Waits:
    """Seconds by model, as expected last."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[float, float]] = {}

    def expect(self, model: str, seconds: float) -> None:
        self._expected[model] = (seconds, time.monotonic())

    def of(self, model: str, least_s: float) -> float:
        """What to tell a client of `model`, at least `least_s`."""
        seconds, at_s = self._expected.get(model, (0.0, -math.inf))
        return max(least_s, seconds) if time.monotonic() - at_s <= FRESH_S else least_s
