"""What remains of a limit per minute: a bucket that holds one minute's worth and refills at the limit's rate."""

from dataclasses import dataclass

MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Bucket:
    """A level at a time. Immutable: each change returns a new bucket.

    Attributes:
        per_minute: The limit, which is also the highest level.
        level: What may be taken; below 0 if more was used than expected.
        at_s: Time of this level, on the caller's clock.
    """

    per_minute: float
    level: float
    at_s: float

    @classmethod
    def full(cls, per_minute: float, now_s: float) -> "Bucket":
        return cls(per_minute, per_minute, now_s)

    def at(self, now_s: float) -> "Bucket":
        """Return the bucket refilled until `now_s`."""
        filled = self.level + self.per_minute / MINUTE_S * max(0.0, now_s - self.at_s)
        return Bucket(self.per_minute, min(self.per_minute, filled), now_s)

    def less(self, amount: float) -> "Bucket":
        """Return the bucket with `amount` taken; a negative amount is given back."""
        return Bucket(self.per_minute, min(self.per_minute, self.level - amount), self.at_s)

    def limited_to(self, per_minute: float) -> "Bucket":
        """Return the bucket under another limit; what was used stays used."""
        return Bucket(per_minute, per_minute - (self.per_minute - self.level), self.at_s)

    def seconds_until(self, level: float) -> float:
        """Return the seconds until it holds `level`; 0 if it already does."""
        return max(0.0, level - self.level) * MINUTE_S / self.per_minute
