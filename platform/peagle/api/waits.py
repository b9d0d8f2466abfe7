"""Expected time until a full queue has capacity: set by dispatch, reported to clients.

Both run in the ingress process. Serve refuses a request before dispatch sees it. But dispatch decides on waiting
requests several times a second, and each decision that finds no capacity says when it expects some.
"""

import math
import time

FRESH_S = 5.0
"""Age in seconds after which an expectation is ignored."""


class Waits:
    """Last expected wait by model, in seconds."""

    def __init__(self) -> None:
        self._expected: dict[str, tuple[float, float]] = {}

    def expect(self, model: str, seconds: float) -> None:
        self._expected[model] = (seconds, time.monotonic())

    def of(self, model: str, least_s: float) -> float:
        """Return the wait to report to a client of `model`, at least `least_s`."""
        seconds, at_s = self._expected.get(model, (0.0, -math.inf))
        return max(least_s, seconds) if time.monotonic() - at_s <= FRESH_S else least_s
