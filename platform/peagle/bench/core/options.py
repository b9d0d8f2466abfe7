"""The load of a measurement, and its command line options."""

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from peagle.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The load on every engine; each field is an option of the commands that `take_load` decorates."""

    prompts: Annotated[int, typer.Option(min=1, help="Number of prompts.")] = 24
    tokens: Annotated[int, typer.Option(min=2, help="Output tokens per request.")] = 128
    repeats: Annotated[int, typer.Option(min=1, help="Measured repeats; the report has their median.")] = 5
    restart_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="REPEATS",
            help="Restart engines or servers after this many repeats: equal ones differ by percents between starts.",
        ),
    ] = None
    warmup: Annotated[
        int, typer.Option(min=0, help="Warm-up prompt sets at each concurrency, cycling through the sets.")
    ] = 1
    skip_loops: Annotated[
        float | None,
        typer.Option(
            metavar="MIN_SHARE",
            min=0.0,
            max=1.0,
            help="Skip prompts whose output without speculation has a smaller share of distinct 8-grams.",
        ),
    ] = None
    prompts_from: Annotated[
        Path | None,
        typer.Option(
            help="JSON Lines file with a prompt, turns (MT-Bench) or messages (SPEED-Bench) per line; by default the "
            "bundled held-out prompts."
        ),
    ] = None
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Send prompts as user messages, as turns and messages always are."),
    ] = False
    eager: Annotated[bool, typer.Option("--eager", help="Do not compile: faster to start, slower to run.")] = False

    def check(self, concurrencies: Collection[int]) -> None:
        """Raise ConfigError if there are fewer prompts than the highest concurrency."""
        if self.prompts < (most := max(concurrencies)):
            problem = f"--concurrency needs {most} concurrent requests"
            raise ConfigError("--prompts", self.prompts, problem, "Raise it to at least that number.")

    def next_repeats(self, remaining: Iterable[int]) -> range:
        """Return the repeats of the next start, from the first repeat that has something left to measure."""
        every = self.restart_every or self.repeats
        first = min(remaining, default=0) // every
        return range(first * every, (first + 1) * every)


def take_load(command: Callable[..., None], *, without: Collection[str] = (), **defaults: Any) -> Callable[..., None]:
    """Replace a Typer command's parameter `load` by an option for each field of `LoadOptions`.

    Fields `without` an option keep their default; the others use their own default, or the one in `defaults`.
    """
    own = [each for each in inspect.signature(command).parameters.values() if each.name != "load"]
    shared = [
        each.replace(default=defaults.get(each.name, each.default))
        for each in inspect.signature(LoadOptions).parameters.values()
        if each.name not in without
    ]
    names = [each.name for each in shared]

    @wraps(command)
    def with_options(**given: Any) -> None:
        load = LoadOptions(**{name: given.pop(name) for name in names})
        command(**given, load=load)

    by_keyword = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in [*own, *shared]]
    with_options.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]  # Typer reads it
    return with_options
