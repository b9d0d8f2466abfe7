"""Open-loop load for a fleet: short and long requests at random times, some with shared prefixes."""

import random
from dataclasses import dataclass

SHORT_PROMPT, LONG_PROMPT = (50, 300), (1500, 3000)
SHORT_OUTPUT, LONG_OUTPUT = (16, 64), (100, 200)
LONG_SHARE, SHARED_SHARE = 0.3, 0.5
PREFIXES, PREFIX_TOKENS = 24, 1000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A planned request: its time from the start, and its size. `prefix` names its shared prefix, if any."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    prefix: int | None = None

    @property
    def prompt(self) -> list[int]:
        """Return token ids; two prompts have the same beginning only if they share a prefix."""
        if self.prefix is None:
            return [hash((self.at_s, self.prompt_tokens))] * self.prompt_tokens
        return [self.prefix] * PREFIX_TOKENS + [-1] * self.prompt_tokens

    @property
    def shared_tokens(self) -> int:
        return 0 if self.prefix is None else PREFIX_TOKENS


@dataclass(frozen=True, slots=True)
class Sample:
    """One request as seen by its client, timed from its due time, `due_s` after the run's start."""

    due_s: float
    ttft_s: float
    seconds: float
    tokens: int
    replica: str


def mixed_arrivals(number: int, per_s: float, seed: int) -> list[Arrival]:
    """Return `number` requests at a mean rate of `per_s` per second, fixed by `seed`."""
    chance, now_s, arrivals = random.Random(seed), 0.0, []
    for _ in range(number):
        now_s += chance.expovariate(per_s)
        is_long = chance.random() < LONG_SHARE
        prompt = chance.randint(*(LONG_PROMPT if is_long else SHORT_PROMPT))
        output = chance.randint(*(LONG_OUTPUT if is_long else SHORT_OUTPUT))
        prefix = chance.randrange(PREFIXES) if chance.random() < SHARED_SHARE else None
        arrivals.append(Arrival(now_s, prompt, output, prefix))
    return arrivals


def burst(number: int, seed: int) -> list[Arrival]:
    """Return `number` distinct short requests at the same time."""
    chance = random.Random(seed)
    return [Arrival(0.0, chance.randint(*SHORT_PROMPT), chance.randint(*SHORT_OUTPUT)) for _ in range(number)]
