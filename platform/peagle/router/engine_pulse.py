"""Decides whether an engine is alive, from its steps and its answers to probes between steps.

Whatever stops a process without ending it looks the same from outside: silence. A long step looks the same too. It is
distinguished by the duration of recent steps and by the prompts that wait for prefill.
"""

from dataclasses import dataclass
from enum import Enum

STALLED_AFTER_S = 3.0
"""Silence that is normal on a busy machine, in seconds."""
STEPS, PREFILLS = 4.0, 3.0
"""Silence is also normal up to these multiples of the longest recent step, and of the expected prefill of waiting
prompts."""
HUNG_MULTIPLE = 2.0
"""Multiple of the stall time after which the engine is ended. A stalled engine only gets no new requests."""
PREFILL_TOKENS_PER_S = 100.0
"""Prefill rate assumed until the engine has measured its own."""
STEPS_HALF_LIFE = 50.0
TICK_MAX_S = 1.0
"""Longer gaps between two looks are this process's own delay, in which it could not hear anything."""


class Pulse(Enum):
    """State of an engine, judged by its silence."""

    BEATS = "beats"
    STALLED = "stalled"
    """It gets no new requests, and may recover."""
    HUNG = "hung"
    """It is considered dead."""


@dataclass(slots=True)
class EnginePulse:
    """One engine's signs of life. Times are seconds on one monotonic clock of the caller.

    Args:
        hung_after_s: Minimum silence after which the engine is considered dead.
    """

    hung_after_s: float
    _longest_step_s: float = 0.0
    _silent_s: float = 0.0
    _heard: bool = True
    _at_work: bool = False
    _stepped_at_s: float = 0.0
    _looked_at_s: float | None = None

    @property
    def silent_s(self) -> float:
        """Seconds of silence, as of the last look."""
        return self._silent_s

    def stepped(self, at_s: float, has_work: bool) -> None:
        """Record a step that ended at `at_s`; `has_work` states whether another follows at once."""
        if self._at_work:
            # A stall is not a usual step: cap it, so that the next stall is found before it counts as a hang.
            step_s = min(at_s - self._stepped_at_s, self.hung_after_s / STEPS)
            self._longest_step_s = max(step_s, self._longest_step_s * 0.5 ** (1.0 / STEPS_HALF_LIFE))
        self._stepped_at_s, self._at_work, self._heard = at_s, has_work, True

    def answered(self) -> None:
        """Record the answer to a probe."""
        self._heard = True

    def look(self, now_s: float, prefill_tokens: int, prefill_tokens_per_s: float) -> Pulse:
        """Judge the silence up to now; call at least every `TICK_MAX_S`.

        Args:
            now_s: The time.
            prefill_tokens: Prompt tokens that the next step may prefill.
            prefill_tokens_per_s: The engine's rate; 0 if unknown.
        """
        passed_s = 0.0 if self._looked_at_s is None else min(now_s - self._looked_at_s, TICK_MAX_S)
        self._looked_at_s = now_s
        self._silent_s = 0.0 if self._heard else self._silent_s + passed_s
        self._heard = False
        prefill_s = prefill_tokens / (prefill_tokens_per_s or PREFILL_TOKENS_PER_S)
        usual_s = max(STALLED_AFTER_S, STEPS * self._longest_step_s, PREFILLS * prefill_s)
        if self._silent_s >= max(self.hung_after_s, HUNG_MULTIPLE * usual_s):
            return Pulse.HUNG
        return Pulse.STALLED if self._silent_s >= usual_s else Pulse.BEATS
