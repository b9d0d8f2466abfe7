"""Whether an engine is alive, from its signs of life: its steps, and its answers to a probe that it takes between two.

Whatever stops a process without ending it looks the same from outside: nothing comes. So does one long step, and that
is told apart by how long steps have been and by the prompts that wait to be prefilled.
"""

from dataclasses import dataclass
from enum import Enum

STALLED_AFTER_S = 3.0
"""Silence that is nothing unusual on a busy machine."""
STEPS, PREFILLS = 4.0, 3.0
"""Nor is silence of so many of the longest recent steps, or so many times what the waiting prompts should take."""
HUNG_MULTIPLE = 2.0
"""One that has stalled gets nothing new, which costs little; it is ended only after so many times that silence."""
PREFILL_TOKENS_PER_S = 100.0
"""Assumed until an engine has shown its own."""
STEPS_HALF_LIFE = 50.0
TICK_MAX_S = 1.0
"""More time between two looks is this process's own lateness, in which it could have heard nothing."""


class Pulse(Enum):
    """What an engine's silence says."""

    BEATS = "beats"
    STALLED = "stalled"
    """It gets nothing new, and may come back."""
    HUNG = "hung"
    """It is given up."""


@dataclass(slots=True)
class EnginePulse:
    """One engine's signs of life. Times are seconds on one monotonic clock of the caller's.

    Args:
        hung_after_s: The least silence after which it is given up.
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
        """How long nothing was heard, as of the last look."""
        return self._silent_s

    def stepped(self, at_s: float, has_work: bool) -> None:
        """Note a step that ended at `at_s`; `has_work` tells whether another follows at once."""
        if self._at_work:
            # A stall is no usual step: however long it was, the next is found before it counts as a hang.
            step_s = min(at_s - self._stepped_at_s, self.hung_after_s / STEPS)
            self._longest_step_s = max(step_s, self._longest_step_s * 0.5 ** (1.0 / STEPS_HALF_LIFE))
        self._stepped_at_s, self._at_work, self._heard = at_s, has_work, True

    def answered(self) -> None:
        """Note the answer to a probe."""
        self._heard = True

    def look(self, now_s: float, prefill_tokens: int, prefill_tokens_per_s: float) -> Pulse:
        """Judge the silence up to now; call it at least every `TICK_MAX_S`.

        Args:
            now_s: The time.
            prefill_tokens: Prompt tokens that the next step may prefill.
            prefill_tokens_per_s: The engine's rate; 0 where it is not known.
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
