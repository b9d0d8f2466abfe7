"""Statistics of a measurement. Pure: numbers in, numbers out."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from statistics import median


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes over repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """Summarise `values`. Raises ValueError if there are none."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class DraftCounts:
    """Number of verified drafts, and for each position (index j is position j+1) tokens drafted and accepted."""

    drafts: int
    drafted: tuple[int, ...]
    accepted: tuple[int, ...]

    def __add__(self, other: "DraftCounts") -> "DraftCounts":
        return DraftCounts(
            self.drafts + other.drafts, _sum(self.drafted, other.drafted), _sum(self.accepted, other.accepted)
        )

    def __sub__(self, earlier: "DraftCounts") -> "DraftCounts":
        return DraftCounts(
            self.drafts - earlier.drafts,
            _sum(self.drafted, tuple(-count for count in earlier.drafted)),
            _sum(self.accepted, tuple(-count for count in earlier.accepted)),
        )

    @property
    def acceptance_length(self) -> float | None:
        """Tokens per verification, including the bonus token; None without drafts."""
        return 1 + sum(self.accepted) / self.drafts if self.drafts else None

    @property
    def depth_effective(self) -> float | None:
        """Draft tokens verified per draft."""
        return sum(self.drafted) / self.drafts if self.drafts else None

    @property
    def acceptance_by_position(self) -> tuple[float, ...]:
        """Probability that the first j draft tokens are all accepted, for each verified j."""
        return tuple(hit / tried for hit, tried in zip(self.accepted, self.drafted, strict=True) if tried)


NO_DRAFTS = DraftCounts(0, (), ())


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Spread:
    """Return the spread of ratios of values from the same repeat, which cancels drift between repeats."""
    return Spread.of([a / b for a, b in zip(numerators, denominators, strict=True)])


def cost_per_million_tokens(price_per_hour: float, tokens_per_s: float) -> float:
    """Return the cost of a million tokens on a never idle machine of this price, in the price's currency."""
    return price_per_hour / 3600 / tokens_per_s * 1e6


def distinct_share(tokens: Sequence[int], width: int = 1) -> float:
    """Return the share of distinct n-grams of `width` tokens: near 1 for text, near 0 for a loop."""
    grams = [tuple(tokens[start : start + width]) for start in range(len(tokens) - width + 1)]
    return len(set(grams)) / len(grams) if grams else 1.0


def _sum(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(one + other for one, other in zip_longest(left, right, fillvalue=0))
