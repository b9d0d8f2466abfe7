"""A run whose load and prompts shift, the same for every K: where one K cannot be right throughout."""

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
    """A part of the run: what is asked, and how many requests at once."""

    kind: str
    concurrency: int
    prompts: tuple[list[int], ...]

    @property
    def name(self) -> str:
        return f"{self.kind} at {self.concurrency}"


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """One variant's pass through one phase. `settled_s` is when K at the phase's concurrency last changed."""

    seconds: float
    tokens: int
    settled_s: float | None


@dataclass(frozen=True, slots=True)
class TakeKey:
    """One variant (its name) through all phases, in a repeat counted from 0."""

    repeat: int
    variant: str


@dataclass(frozen=True, slots=True)
class Take:
    """The line of a journal that holds one."""

    key: TakeKey
    phases: tuple[PhaseRun, ...]
    kind: Literal["take"] = "take"

    def enter(self, journal: Journal) -> None:
        journal.made[self.key] = self.phases


Takes = Mapping[Variant, Sequence[Sequence[PhaseRun]]]
"""By variant, one list of phases for each repeat."""


def make_phases(
    code: Sequence[Prompt], encode: Callable[[Prompt], list[int]], vocabulary: int, tokens_max: int
) -> list[Phase]:
    """Prompts of up to `tokens_max` for every phase, none twice while they last; the same every time.

    Raises ConfigError where none is so short.
    """
    texts = {
        kind: [tokens for text in of_kind if len(tokens := encode(text)) <= tokens_max]
        for kind, of_kind in ((CODE, code), (PROSE, _prose()))
    }
    if not all(texts.values()) or tokens_max < NOISE_TOKENS:
        raise ConfigError("--shifting", True, f"prompts have to fit {tokens_max} tokens", "Lower --tokens.")
    sources: dict[str, Iterator[list[int]]] = {
        CODE: cycle(texts[CODE]),
        PROSE: cycle(texts[PROSE]),
        NOISE: noise(vocabulary),
    }
    return [Phase(kind, each, tuple(islice(sources[kind], _requests(each)))) for kind, each in ORDER]


def noise(vocabulary: int) -> Iterator[list[int]]:
    """Prompts of random tokens, without end; the same every time."""
    chance = random.Random(0)
    while True:
        yield [chance.randrange(2, vocabulary) for _ in range(NOISE_TOKENS)]


def _requests(concurrency: int) -> int:
    """For a phase in which K has time to settle: of 48 tokens each, the shortest take four seconds on two cores."""
    return 32 + 12 * concurrency


def planned_takes(variants: Sequence[Variant], repeats: int) -> list[TakeKey]:
    """Every variant through all phases, `repeats` times, in an order that moves on each time."""
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
    """Make the takes `todo`, those of one repeat phase by phase in turn, and hand them to `keep` when it ends.

    So a machine that drifts hits all alike. Adaptive depth notices nothing of the others' turns, see `Engine.adapting`.
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
    """The takes of every variant, in the order of the repeats. Raises KeyError where one has not been made."""
    return {
        variant: [made[key] for key in sorted(planned, key=lambda key: key.repeat) if key.variant == variant.name]
        for variant in variants
    }


def shifting_rows(takes: Takes) -> list[dict[str, Any]]:
    """One row for each variant; adaptive depth has its ratios to the best single static K and to no speculation."""
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
    """Paragraphs of Python's own documentation, which every Python has."""
    parts = (part.strip() for text in topics.values() for part in text.split("\n\n"))
    return [part[:PROSE_CHARS] for part in parts if len(part) >= PROSE_CHARS]
