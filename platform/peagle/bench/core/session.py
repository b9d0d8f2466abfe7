"""What every comparison does between its start and its report, whatever takes turns in it."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from peagle.bench.core.journal import Entry, Journal
from peagle.bench.core.options import LoadOptions
from peagle.bench.core.output import Form, write_result
from peagle.bench.core.records import Answer, Named, PassKey, Run
from peagle.bench.core.turns import in_turn, planned_passes, warmup_passes
from peagle.errors import StartupError
from peagle.host.terminal import Terminal
from peagle.prompt_file import Prompt

IDLE_SECONDS = 3.0
IDLE_CORES_ALLOWED = 0.1
"""More than this, used by engines that nothing is asked of, slows the engine that is being timed."""


@dataclass(frozen=True, slots=True)
class Job(ABC):
    """What takes turns, under which load, with prompts from which texts.

    Its journal has the lines `entries`, its result is shown in the `form`, and what is measured writes to the `log`.
    """

    entries: ClassVar[Sequence[type[Entry]]]
    form: ClassVar[Form]
    log: ClassVar[str]
    variants: Sequence[Named]
    concurrencies: Sequence[int]
    load: LoadOptions
    texts: Sequence[Prompt]
    settings: Mapping[str, Any]

    def planned(self, journal: Journal) -> list[PassKey]:
        """Every measured pass; none while the prompts have not been chosen."""
        if journal.chosen is None:
            return []
        return planned_passes(self.variants, journal.chosen.prompts, self.concurrencies, self.load.repeats)

    def remaining(self, journal: Journal) -> list[Any]:
        """What has not been made yet."""
        return [key for key in self.planned(journal) if key not in journal.made]

    def next(self, journal: Journal) -> list[Any]:
        """What of that is made before all that is compared starts anew."""
        remaining = self.remaining(journal)
        repeats = self.load.next_repeats(key.repeat for key in remaining)
        return [key for key in remaining if key.repeat in repeats]

    @abstractmethod
    async def measure(self, journal: Journal, folder: Path, terminal: Terminal) -> None:
        """Start what is compared, choose the prompts where they are not chosen yet, and make what is `next`."""

    @abstractmethod
    def result(self, journal: Journal) -> dict[str, Any]:
        """`result.json` of all that is planned."""


async def run_job(job: Job, folder: Path, terminal: Terminal) -> None:
    """Measure what `folder` does not have yet, print the table and write the results beside it.

    Raises:
        ConfigError: The folder holds a run with other settings, or the options do not fit what is compared.
        StartupError: What is compared does not start, or fails.
    """
    with Journal.open(folder, job.settings, job.entries) as journal:
        if journal.made:
            terminal.say(f"Going on in {folder}: {len(journal.made)} measured passes are there.")
        try:
            while journal.chosen is None or job.remaining(journal):
                await job.measure(journal, folder, terminal)
        except ExceptionGroup as failures:
            problem: BaseException | None = failures.subgroup(StartupError)
            if problem is None:
                raise
            while isinstance(problem, BaseExceptionGroup):
                problem = problem.exceptions[0]
            raise problem from None
        finally:
            kept, remaining = len(journal.made), len(job.remaining(journal))
            if kept and remaining:
                terminal.say(
                    f"{kept} of {kept + remaining} measured passes are kept. "
                    f"Give the same command with --out {folder} to go on."
                )
        result = job.result(journal)
    write_result(result, job.form, folder, terminal)


async def time_passes(
    job: Job,
    journal: Journal,
    terminal: Terminal,
    make: Callable[[Any, list[Any], int], Awaitable[Run[Answer]]],
    entry: Callable[[PassKey, Run[Answer]], Entry],
) -> None:
    """Make the next passes `in_turn`, after a warm-up, with a bar; the journal keeps an `entry` for each."""
    prompts = journal.chosen.prompts
    done, todo = ([key for key in keys if isinstance(key, PassKey)] for keys in (journal.made, job.next(journal)))
    warmup = warmup_passes(job.variants, prompts, todo, job.load.warmup)

    def keep(key: PassKey, made: Run[Answer]) -> None:
        journal.keep(entry(key, made))

    with progress_bar(terminal, len(done), len(warmup) + len(todo)) as begin:
        await in_turn(make, job.variants, prompts, warmup=warmup, todo=todo, begin=begin, keep=keep)


@contextmanager
def progress_bar(terminal: Terminal, done: int, todo: int) -> Iterator[Callable[[str], None]]:
    """A bar over all steps, `done` of them already; what it yields is called with each one's name as that begins."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=terminal.console) as progress:
        task = progress.add_task("", total=done + todo, completed=done)
        begun = done

        def begin(name: str) -> None:
            nonlocal begun
            progress.update(task, description=name, completed=begun)
            begun += 1

        yield begin
        progress.update(task, description="done", completed=done + todo)
