"""The session of every comparison, from start to report."""

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
"""Most cores that all idle engines together may use; with more they slow down the engine that is being timed."""


@dataclass(frozen=True, slots=True)
class Job(ABC):
    """A comparison: its variants, load and prompts.

    `entries` are the types of its journal's lines, `form` presents its result, and `log` is the file name of the output
    of its engines or servers.
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
        """Return every planned pass; empty until the prompts are chosen."""
        if journal.chosen is None:
            return []
        return planned_passes(self.variants, journal.chosen.prompts, self.concurrencies, self.load.repeats)

    def remaining(self, journal: Journal) -> list[Any]:
        """Return the passes that are not measured yet."""
        return [key for key in self.planned(journal) if key not in journal.made]

    def next(self, journal: Journal) -> list[Any]:
        """Return the passes to measure before the next restart of the engines or servers."""
        remaining = self.remaining(journal)
        repeats = self.load.next_repeats(key.repeat for key in remaining)
        return [key for key in remaining if key.repeat in repeats]

    @abstractmethod
    async def measure(self, journal: Journal, folder: Path, terminal: Terminal) -> None:
        """Start engines or servers, choose the prompts if not yet chosen, and measure the `next` passes."""

    @abstractmethod
    def result(self, journal: Journal) -> dict[str, Any]:
        """Return `result.json` of all planned passes."""


async def run_job(job: Job, folder: Path, terminal: Terminal) -> None:
    """Measure the passes that are missing in `folder`, print the table and write the results.

    Raises:
        ConfigError: The folder has a run with other settings, or the options are inconsistent with the comparison.
        StartupError: An engine or server does not start, or fails.
    """
    with Journal.open(folder, job.settings, job.entries) as journal:
        if journal.made:
            terminal.say(f"Resuming in {folder}: {len(journal.made)} measured passes exist.")
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
                    f"{kept} of {kept + remaining} measured passes are saved. "
                    f"Run the same command with --out {folder} to resume."
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
    """Measure the next passes `in_turn`, after a warm-up, with a progress bar and a journal `entry` for each."""
    prompts = journal.chosen.prompts
    done, todo = ([key for key in keys if isinstance(key, PassKey)] for keys in (journal.made, job.next(journal)))
    warmup = warmup_passes(job.variants, prompts, todo, job.load.warmup)

    def keep(key: PassKey, made: Run[Answer]) -> None:
        journal.keep(entry(key, made))

    with progress_bar(terminal, len(done), len(warmup) + len(todo)) as begin:
        await in_turn(make, job.variants, prompts, warmup=warmup, todo=todo, begin=begin, keep=keep)


@contextmanager
def progress_bar(terminal: Terminal, done: int, todo: int) -> Iterator[Callable[[str], None]]:
    """Show a progress bar with `done` steps done; yield a function to call with each step's name when it begins."""
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
