"""A run with shifting load and prompts, the same for every K, in which no single K is best throughout."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import cycle, groupby, islice
from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Any, Literal

from peagle.bench.core.closed_loop import run_pass
from peagle.bench.core.journal import Journal
from peagle.bench.core.records import NONE
from peagle.bench.core.statistics import Spread, paired_ratio
from peagle.bench.core.turns import rotated
from peagle.bench.engines.engine_plan import Variant
from peagle.errors import ConfigError
from peagle.prompt_file import Prompt

if TYPE_CHECKING:
    from peagle.bench.engines.vllm_engines import Engine

CODE, PROSE, NOISE = "code", "prose", "noise"
ORDER = ((CODE, 1), (CODE, 32), (PROSE, 8), (NOISE, 1), (CODE, 1), (NOISE, 32), (PROSE, 1))
MOST_AT_ONCE = max(concurrency for _, concurrency in ORDER)
PROSE_CHARS, NOISE_TOKENS = 400, 64


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the run: kind of prompts, and concurrency."""

    kind: str
    concurrency: int
    prompts: tuple[list[int], ...]

    @property
    def name(self) -> str:
        return f"{self.kind} at {self.concurrency}"


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """One variant's pass through one phase. `settled_s` is the time of the last change of K at its concurrency."""

    seconds: float
    tokens: int
    settled_s: float | None


@dataclass(frozen=True, slots=True)
class TakeKey:
    """Key of one variant's run through all phases, in a repeat counted from 0."""

    repeat: int
    variant: str


@dataclass(frozen=True, slots=True)
class Take:
    """The journal line of one take."""

    key: TakeKey
    phases: tuple[PhaseRun, ...]
    kind: Literal["take"] = "take"

    def enter(self, journal: Journal) -> None:
        journal.made[self.key] = self.phases


Takes = Mapping[Variant, Sequence[Sequence[PhaseRun]]]
"""One list of phases per repeat, by variant."""


def make_phases(
    code: Sequence[Prompt], encode: Callable[[Prompt], list[int]], vocabulary: int, tokens_max: int
) -> list[Phase]:
    """Return reproducible prompts of up to `tokens_max` tokens for every phase, without repetition while they last.

    Raises ConfigError if no prompt is short enough.
    """
    texts = {
        kind: [tokens for text in of_kind if len(tokens := encode(text)) <= tokens_max]
        for kind, of_kind in ((CODE, code), (PROSE, _prose()))
    }
    if not all(texts.values()) or tokens_max < NOISE_TOKENS:
        raise ConfigError("--shifting", True, f"prompts have to fit into {tokens_max} tokens", "Lower --tokens.")
    sources: dict[str, Iterator[list[int]]] = {
        CODE: cycle(texts[CODE]),
        PROSE: cycle(texts[PROSE]),
        NOISE: noise(vocabulary),
    }
    return [Phase(kind, each, tuple(islice(sources[kind], _requests(each)))) for kind, each in ORDER]


def noise(vocabulary: int) -> Iterator[list[int]]:
    """Yield an endless, reproducible sequence of random token prompts."""
    chance = random.Random(0)
    while True:
        yield [chance.randrange(2, vocabulary) for _ in range(NOISE_TOKENS)]


def _requests(concurrency: int) -> int:
    """Return enough requests for K to settle in a phase: with 48 tokens each, at least four seconds on two cores."""
    return 32 + 12 * concurrency


def planned_takes(variants: Sequence[Variant], repeats: int) -> list[TakeKey]:
    """Return every variant through all phases, `repeats` times, in rotating order."""
    return [TakeKey(repeat, variant.name) for repeat in range(repeats) for variant in rotated(variants, repeat)]


async def measure_shifting(
    engines: Sequence["Engine"],
    variants: Sequence[Variant],
    phases: Sequence[Phase],
    *,
    todo: Sequence[TakeKey],
    begin: Callable[[str], None],
    keep: Callable[[Take], None],
) -> None:
    """Run the takes `todo`, those of one repeat phase by phase in turn, and pass them to `keep` at its end.

    So drift of the machine affects all equally. Other variants' turns do not affect adaptive depth, see
    `Engine.adapting`.
    """
    named = {variant.name: variant for variant in variants}
    for _, keys in groupby(todo, key=lambda key: key.repeat):
        takes: dict[TakeKey, list[PhaseRun]] = {key: [] for key in keys}
        for turn, phase in enumerate(phases):
            for key in rotated(list(takes), turn):
                variant = named[key.variant]
                begin(f"repeat {key.repeat + 1}, {variant.name}, {phase.name}")
                takes[key].append(await _run(engines[variant.engine], variant, phase))
        for key, take in takes.items():
            keep(Take(key, tuple(take)))


async def _run(engine: "Engine", variant: Variant, phase: Phase) -> PhaseRun:
    await engine.prepare(variant.depth)
    async with engine.adapting() if variant.adaptive else nullcontext():
        started_s = time.monotonic()
        seconds, traces = await run_pass(engine.stream, phase.prompts, phase.concurrency)
        settled_s = engine.settled_s(phase.concurrency, started_s) if variant.adaptive else None
    await engine.settle()
    return PhaseRun(seconds, sum(trace.token_count for trace in traces), settled_s)


def assemble_takes(
    variants: Sequence[Variant], planned: Sequence[TakeKey], made: Mapping[TakeKey, tuple[PhaseRun, ...]]
) -> Takes:
    """Return the takes of every variant, in the order of the repeats. Raises KeyError if one is missing."""
    return {
        variant: [made[key] for key in sorted(planned, key=lambda key: key.repeat) if key.variant == variant.name]
        for variant in variants
    }


def shifting_rows(takes: Takes) -> list[dict[str, Any]]:
    """Return one row per variant; adaptive depth has ratios to the best static K and to no speculation."""
    speeds = {variant: [_tokens_per_s(phases) for phases in repeats] for variant, repeats in takes.items()}
    static = {each: speed for each, speed in speeds.items() if not each.adaptive and each.method != NONE}
    none = next((speed for each, speed in speeds.items() if each.method == NONE), None)
    rows = []
    for variant, repeats in takes.items():
        row: dict[str, Any] = {
            "variant": variant.name,
            "output_tokens_per_s": asdict(Spread.of(speeds[variant])),
            "phases_tokens_per_s": [
                asdict(Spread.of([run.tokens / run.seconds for run in same])) for same in zip(*repeats, strict=True)
            ],
        }
        if variant.adaptive and static:
            best = max(static, key=lambda each: Spread.of(static[each]).median)
            row |= {
                "best_static": best.name,
                "ratio_to_best_static": asdict(paired_ratio(speeds[variant], static[best])),
            }
            row["settled_s"] = [max(run.settled_s or 0.0 for run in same) for same in zip(*repeats, strict=True)]
        if none is not None and variant.method != NONE:
            row["ratio_to_none"] = asdict(paired_ratio(speeds[variant], none))
        rows.append(row)
    return rows


def _tokens_per_s(phases: Sequence[PhaseRun]) -> float:
    return sum(phase.tokens for phase in phases) / sum(phase.seconds for phase in phases)


def _prose() -> list[str]:
    """Return paragraphs of Python's own documentation, which is always available."""
    parts = (part.strip() for text in topics.values() for part in text.split("\n\n"))
    return [part[:PROSE_CHARS] for part in parts if len(part) >= PROSE_CHARS]
