"""The load of a comparison, and the command line's options for it."""

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
    """What every engine is given to do; each field is an option of the commands that `take_load` decorates."""

    prompts: Annotated[int, typer.Option(min=1, help="How many prompts.")] = 24
    tokens: Annotated[int, typer.Option(min=2, help="Output tokens of each request.")] = 128
    repeats: Annotated[int, typer.Option(min=1, help="Measured repeats; the report has their median.")] = 5
    restart_every: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="REPEATS",
            help="Start anew what is compared after so many repeats: like ones differ by percents from start to start.",
        ),
    ] = None
    warmup: Annotated[
        int, typer.Option(min=0, help="Prompt sets run before measuring, at each concurrency; again from the first.")
    ] = 1
    skip_loops: Annotated[
        float | None,
        typer.Option(
            metavar="MIN_SHARE",
            min=0.0,
            max=1.0,
            help="Leave out prompts whose output without speculation has a smaller share of distinct 8-grams.",
        ),
    ] = None
    prompts_from: Annotated[
        Path | None,
        typer.Option(
            help="JSON lines with a prompt, turns (MT-Bench) or messages (SPEED-Bench) each; by default the held-out "
            "prompts shipped here."
        ),
    ] = None
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Ask prompts as a user's messages, as turns and messages always are."),
    ] = False
    eager: Annotated[bool, typer.Option("--eager", help="Do not compile: quicker to start, slower to run.")] = False

    def check(self, concurrencies: Collection[int]) -> None:
        """Raises ConfigError where there are too few prompts to have so many requests at once."""
        if self.prompts < (most := max(concurrencies)):
            problem = f"--concurrency has {most} requests at once"
            raise ConfigError("--prompts", self.prompts, problem, "Ask for as many prompts at least.")

    def next_repeats(self, remaining: Iterable[int]) -> range:
        """Of the repeats in which something remains to be measured, those of the next start, from the first of them."""
        every = self.restart_every or self.repeats
        first = min(remaining, default=0) // every
        return range(first * every, (first + 1) * every)


def take_load(command: Callable[..., None], *, without: Collection[str] = (), **defaults: Any) -> Callable[..., None]:
    """Give a command of Typer's, in place of its parameter `load`, an option for each field of `LoadOptions`.

    Fields `without` an option keep their default; the others have their own, or the one in `defaults`.
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
    with_options.__signature__ = inspect.Signature(by_keyword)  # type: ignore[attr-defined]  # what Typer reads
    return with_options
