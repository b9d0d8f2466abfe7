"""Expected results of GPU measurements, line by line. Pure: plain values in, one verdict per line out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from peagle.bench.core.records import NONE, PEAGLE

LOADS, DEPTHS = (1, 8, 32, 64, 128), (0, 1, 2, 3, 5, 7)
ADAPTIVE, REPORTED = "adaptive", "reported"

TRIAL_STEP_MS: Mapping[int, Mapping[int, float]] = {
    1: {0: 4.8, 1: 5.9, 2: 5.9, 3: 6.0, 5: 6.1, 7: 6.1},
    8: {0: 4.9, 1: 6.6, 2: 7.4, 3: 7.7, 5: 7.7, 7: 6.4},
    32: {0: 5.3, 1: 8.4, 2: 8.8, 3: 9.1, 5: 9.2, 7: 11.6},
    64: {0: 5.9, 1: 11.3, 2: 13.9, 3: 13.0, 5: 16.3, 7: 18.5},
    128: {0: 7.3, 1: 15.0, 2: 17.9, 3: 20.8, 5: 30.4, 7: 32.9},
}
"""Milliseconds of a decode-only step with a full graph for each K, by requests at once: one H200, commit 16c1948 with a
trial patch, one pass. It is what later commits are held against.
"""

Row = Mapping[str, Any]
"""One variant at one load: `variant` (a K, or adaptive), `load`, `tokens_per_s` by pass, `step_ms`, and of the first
pass `first_step_ratio`, its first decode step over the median of the later ones.
"""
Engines = Mapping[str, Mapping[str, Any]]
"""By engine, what its process wrote: `rows`, `compiled` after it was ready, `steps_by_graph`; or an `error`."""


@dataclass(frozen=True, slots=True)
class Line:
    """A claim, its measured value and its bound; `holds` is None if it could not be measured."""

    name: str
    found: str
    wanted: str
    holds: bool | None

    def plain(self) -> dict[str, Any]:
        return {"name": self.name, "found": self.found, "wanted": self.wanted, "holds": self.holds}


def all_lines(engines: Engines, checks: Mapping[str, str | None]) -> list[Line]:
    """Return every line; `checks` holds the problem of each check by name, None if it passed."""
    lines = [_checked(checks)]
    for line in (
        _steps_as_in_the_trial,
        _nothing_lost_at_zero,
        _drafting_one_is_cheap,
        _adaptive_is_the_best,
        _adaptive_beats_the_deepest,
        _the_first_step_is_like_the_others,
        _in_full_graphs,
        _nothing_compiled,
        *(_against_eagle3(depth) for depth in (3, 7)),
    ):
        try:
            lines.append(line(engines))
        except (KeyError, ValueError, ZeroDivisionError) as missing:
            name = (line.__doc__ or "").rstrip(".")
            lines.append(Line(name, f"not measured ({missing!r})", "", None))
    return lines


def shown(lines: Sequence[Line]) -> bool:
    """Whether every line with a bound holds: a line that could not be measured does not."""
    return all(line.holds for line in lines if line.wanted != REPORTED)


def table(lines: Sequence[Line]) -> str:
    """The lines for a terminal."""
    words = {True: "holds", False: "FAILS", None: "-"}
    rows = [(words[line.holds], line.name, line.found, line.wanted) for line in lines]
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _checked(checks: Mapping[str, str | None]) -> Line:
    wrong = [f"{name}: {said}" for name, said in checks.items() if said is not None]
    found = f"{len(checks) - len(wrong)} of {len(checks)}" + (f" ({'; '.join(wrong)})" if wrong else "")
    return Line("checks of the embedded model, float32", found, "all", bool(checks) and not wrong)


def _steps_as_in_the_trial(engines: Engines) -> Line:
    """decode step over the trial's, worst of all K and loads."""
    ratios = {
        (load, depth): _row(engines[PEAGLE], load, depth)["step_ms"] / trial
        for load, by_depth in TRIAL_STEP_MS.items()
        for depth, trial in by_depth.items()
    }
    load, depth = max(ratios, key=ratios.__getitem__)
    worst = ratios[load, depth]
    return _bounded(_steps_as_in_the_trial, f"{worst:.2f} at {load}, K = {depth}", "<= 1.1", worst <= 1.1)


def _nothing_lost_at_zero(engines: Engines) -> Line:
    """tokens/s at K = 0 over an engine without a drafter, least of all loads."""
    least, at = _least(lambda load: _speed(engines[PEAGLE], load, 0) / _speed(engines[NONE], load, 0))
    return _bounded(_nothing_lost_at_zero, f"{least:.3f} at {at}", ">= 0.97", least >= 0.97)


def _drafting_one_is_cheap(engines: Engines) -> Line:
    """decode step at K = 1 over K = 0, 128 at once."""
    ratio = _row(engines[PEAGLE], 128, 1)["step_ms"] / _row(engines[PEAGLE], 128, 0)["step_ms"]
    return _bounded(_drafting_one_is_cheap, f"{ratio:.2f}", "<= 1.4 (trial 2.05)", ratio <= 1.4)


def _adaptive_is_the_best(engines: Engines) -> Line:
    """adaptive over the best static K, least of all loads."""
    of = engines[PEAGLE]
    least, at = _least(lambda load: _speed(of, load, ADAPTIVE) / max(_speed(of, load, depth) for depth in DEPTHS))
    return _bounded(_adaptive_is_the_best, f"{least:.3f} at {at}", ">= 0.98", least >= 0.98)


def _adaptive_beats_the_deepest(engines: Engines) -> Line:
    """adaptive over static K = 7, 128 at once."""
    ratio = _speed(engines[PEAGLE], 128, ADAPTIVE) / _speed(engines[PEAGLE], 128, 7)
    return _bounded(_adaptive_beats_the_deepest, f"{ratio:.2f}", ">= 1.2", ratio >= 1.2)


def _the_first_step_is_like_the_others(engines: Engines) -> Line:
    """first decode step of a K over a later one, worst of all."""
    ratios = {
        (row["load"], row["variant"]): row["first_step_ratio"]
        for row in engines[PEAGLE]["rows"]
        if row.get("first_step_ratio") is not None
    }
    load, depth = max(ratios, key=ratios.__getitem__)
    worst = ratios[load, depth]
    return _bounded(_the_first_step_is_like_the_others, f"{worst:.2f} at {load}, K = {depth}", "<= 1.5", worst <= 1.5)


def _in_full_graphs(engines: Engines) -> Line:
    """share of decode steps in full graphs."""
    steps = engines[PEAGLE]["steps_by_graph"]
    share = steps.get("full", 0) / sum(steps.values())
    return _bounded(_in_full_graphs, f"{share:.4f}", ">= 0.99", share >= 0.99)


def _nothing_compiled(engines: Engines) -> Line:
    """kernels compiled after the engine was ready."""
    compiled = engines[PEAGLE]["compiled"]
    return _bounded(_nothing_compiled, str(compiled), "0", compiled == 0)


def _against_eagle3(depth: int) -> Callable[[Engines], Line]:
    def line(engines: Engines) -> Line:
        rival = engines[f"eagle3 K={depth}"]
        loads = sorted({row["load"] for row in rival["rows"]})
        ratios = [
            f"{_speed(engines[PEAGLE], load, depth) / _speed(rival, load, depth):.2f} at {load}" for load in loads
        ]
        return Line(_named(depth), ", ".join(ratios), REPORTED, None)

    line.__doc__ = _named(depth)
    return line


def _named(depth: int) -> str:
    return f"tokens/s of P-EAGLE over EAGLE-3, same acceptance, K = {depth}"


def _bounded(line: Callable[[Engines], Line], found: str, wanted: str, holds: bool) -> Line:
    return Line((line.__doc__ or "").rstrip("."), found, wanted, holds)


def _least(ratio: Callable[[int], float]) -> tuple[float, int]:
    return min((ratio(load), load) for load in LOADS)


def _row(engine: Mapping[str, Any], load: int, variant: int | str) -> Row:
    found: Row | None = next((row for row in engine["rows"] if (row["load"], row["variant"]) == (load, variant)), None)
    if found is None:
        raise KeyError(f"K = {variant} at {load}")
    return found


def _speed(engine: Mapping[str, Any], load: int, variant: int | str) -> float:
    return median(_row(engine, load, variant)["tokens_per_s"])
