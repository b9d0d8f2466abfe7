"""What every comparison of servers does between its start and its report, whichever servers they are."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from peagle.bench.core.bench_settings import digest
from peagle.bench.core.journal import Journal
from peagle.bench.core.options import LoadOptions
from peagle.bench.engines.engine_session import progress_bar
from peagle.bench.engines.speculation import Named, PassKey, in_turn, planned_passes, warmup_passes
from peagle.bench.servers.served import PromptTexts, ServedPass, select_texts
from peagle.errors import StartupError
from peagle.host.terminal import Terminal
from peagle.prompt_file import Prompt


@dataclass(frozen=True, slots=True)
class ServedJob:
    """What takes turns, under which load, with prompts from which texts."""

    variants: Sequence[Named]
    concurrencies: Sequence[int]
    load: LoadOptions
    texts: Sequence[Prompt]
    settings: Mapping[str, Any]

    def planned(self, journal: Journal) -> list[PassKey]:
        """Every measured pass; none while the prompts have not been chosen."""
        if journal.texts is None:
            return []
        return planned_passes(self.variants, journal.texts.prompts, self.concurrencies, self.load.repeats)

    def remaining(self, journal: Journal) -> list[PassKey]:
        return [key for key in self.planned(journal) if key not in journal.served]

    def next(self, journal: Journal) -> list[PassKey]:
        """Those of them that the same servers make, before they start anew."""
        remaining = self.remaining(journal)
        repeats = self.load.next_repeats(key.repeat for key in remaining)
        return [key for key in remaining if key.repeat in repeats]


async def measure_until_done(
    job: ServedJob, journal: Journal, folder: Path, terminal: Terminal, measure: Callable[[], Awaitable[None]]
) -> None:
    """Call `measure` as long as passes remain to be made, and say what is kept where it fails."""
    if journal.served:
        terminal.say(f"Going on in {folder}: {len(journal.served)} measured passes are there.")
    try:
        while journal.texts is None or job.remaining(journal):
            await measure()
    except ExceptionGroup as failures:
        known = failures.subgroup(StartupError)
        if known is None:
            raise
        problem: BaseException = known
        while isinstance(problem, BaseExceptionGroup):
            problem = problem.exceptions[0]
        raise problem from None
    finally:
        kept, remaining = len(journal.served), len(job.remaining(journal))
        if kept and remaining:
            terminal.say(
                f"{kept} of {kept + remaining} measured passes are kept. "
                f"Give the same command with --out {folder} to go on."
            )


async def choose_texts(
    job: ServedJob, journal: Journal, terminal: Terminal, count: Callable[[Prompt], Awaitable[tuple[int, int]]]
) -> PromptTexts:
    """The prompts that the journal has; where it has none, those that fit the context, see `select_texts`."""
    if journal.texts is None:
        with terminal.stage("Choose prompts"):
            journal.select_texts(await select_texts(job.texts, job.load.prompts, job.load.tokens, count))
    assert journal.texts is not None, "it keeps what it is given"
    return journal.texts


async def time_passes(
    job: ServedJob, journal: Journal, terminal: Terminal, make: Callable[[PassKey], Awaitable[ServedPass]]
) -> None:
    """Make the next passes, after a warm-up, with a bar."""
    assert journal.texts is not None, "prompts are chosen first"
    todo = job.next(journal)
    warmup = warmup_passes(job.variants, journal.texts.prompts, todo, job.load.warmup)
    with progress_bar(terminal, len(journal.served), len(warmup) + len(job.remaining(journal))) as begin:
        await in_turn(make, warmup=warmup, todo=todo, begin=begin, keep=journal.keep_served)


def prompt_figures(texts: PromptTexts) -> dict[str, Any]:
    """Which prompts were taken, as values of `result.json`."""
    return {
        "count": len(texts.prompts),
        "digest": digest(texts.prompts),
        "tokens_median": int(median(texts.tokens)),
        "examined": texts.examined,
        "too_long": texts.too_long,
    }
