"""What a limit by the minute leaves: a bucket that holds one minute's worth and fills at the limit's rate."""

from dataclasses import dataclass

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """A level at a time. Frozen: each change is a new one.

    Attributes:
        per_minute: The limit, which is also the highest level.
        level: What may be taken; below 0 where more was used than was expected.
        at_s: When it was so, on the caller's clock.
    """

    per_minute: float
    level: float
    at_s: float

    @classmethod
    def full(cls, per_minute: float, now_s: float) -> "Bucket":
        return cls(per_minute, per_minute, now_s)

    def at(self, now_s: float) -> "Bucket":
        """The same, filled until `now_s`."""
        filled = self.level + self.per_minute / MINUTE_S * max(0.0, now_s - self.at_s)
        return Bucket(self.per_minute, min(self.per_minute, filled), now_s)

    def less(self, amount: float) -> "Bucket":
        """With `amount` taken; a negative one is given back."""
        return Bucket(self.per_minute, min(self.per_minute, self.level - amount), self.at_s)

    def limited_to(self, per_minute: float) -> "Bucket":
        """Under another limit: what was used stays used."""
        return Bucket(per_minute, per_minute - (self.per_minute - self.level), self.at_s)

    def seconds_until(self, level: float) -> float:
        """How long until it holds `level`, 0 where it does."""
        return max(0.0, level - self.level) * MINUTE_S / self.per_minute
