"""`peagle load`: requests at random times with a given mean rate."""

import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from peagle.bench.core.workloads import held_out_prompts
from peagle.client.running_server import choose_model, key_headers, nothing_answers
from peagle.client.server_url import base_url, heeds_proxies
from peagle.errors import ConfigError

OPEN_MAX = 512
"""Most concurrent requests; further requests wait, so that a hanging server does not exhaust this machine."""
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Sent:
    """One request as seen by its client; `status` is 0 without an answer, `ttft_s` None without a first token."""

    status: int
    seconds: float
    ttft_s: float | None = None
    tokens: int = 0
    whole: bool = False


def arrivals(rates: Sequence[float], seconds: float, seed: int) -> list[float]:
    """Return the request times: `seconds` at each of `rates` in turn, random but fixed by `seed`."""
    chance, times = random.Random(seed), []
    for index, rate in enumerate(rates):
        now_s, end_s = index * seconds, (index + 1) * seconds
        while rate > 0 and (now_s := now_s + chance.expovariate(rate)) < end_s:
            times.append(now_s)
    return times


async def send_all(client: httpx.AsyncClient, body: dict[str, Any], times: Sequence[float], seed: int) -> list[Sent]:
    """Send a request at each of `times`, without waiting for earlier answers."""
    chance, prompts, places = random.Random(seed), held_out_prompts(), asyncio.Semaphore(OPEN_MAX)
    start = time.monotonic()

    async def at(due_s: float, prompt: str) -> Sent:
        await asyncio.sleep(due_s - (time.monotonic() - start))
        async with places:
            return await _send(client, {**body, "prompt": prompt})

    return list(await asyncio.gather(*(at(due_s, chance.choice(prompts)) for due_s in times)))


async def _send(client: httpx.AsyncClient, body: dict[str, Any]) -> Sent:
    start = time.monotonic()
    ttft_s, tokens, whole = None, 0, False
    try:
        async with client.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                event = line.removeprefix("data: ")
                whole = whole or event == "[DONE]"
                if not line.startswith("data: {"):
                    continue
                piece = json.loads(event)
                if ttft_s is None and piece.get("choices"):
                    ttft_s = time.monotonic() - start
                tokens = (piece.get("usage") or {}).get("completion_tokens", tokens)
            return Sent(answer.status_code, time.monotonic() - start, ttft_s, tokens, whole)
    except httpx.HTTPError:
        return Sent(0, time.monotonic() - start, ttft_s, tokens)


def summary(sent: Sequence[Sent], seconds: float) -> Table:
    """Return a table of the results of `sent` in `seconds`."""
    table = Table("requests", "answered", "shed", "failed", "TTFT p50", "TTFT p95", "request p50", "tokens/s")
    answered = [each for each in sent if each.status == 200 and each.whole]
    shed = sum(each.status == 429 for each in sent)
    firsts = sorted(each.ttft_s for each in answered if each.ttft_s is not None)
    table.add_row(
        str(len(sent)),
        str(len(answered)),
        str(shed),
        str(len(sent) - len(answered) - shed),
        _at(firsts, 0.5),
        _at(firsts, 0.95),
        _at(sorted(each.seconds for each in answered), 0.5),
        f"{sum(each.tokens for each in sent) / seconds:.0f}",
    )
    return table


def _at(values: Sequence[float], share: float) -> str:
    return f"{values[min(int(share * len(values)), len(values) - 1)]:.3f} s" if values else "-"


def run_load(
    url: str, model: str | None, rates: str, seconds: float, max_tokens: int, temperature: float, seed: int
) -> None:
    """Send the load, then print the results.

    Raises:
        ConfigError: `rates` is not a list of numbers.
        StartupError: No server answers at `url`, it requires a key, or it does not serve `model`.
    """
    times = arrivals(parse_rates(rates), seconds, seed)
    asyncio.run(_run(base_url(url), model, times, {"max_tokens": max_tokens, "temperature": temperature}, seed))


async def _run(base: str, model: str | None, times: Sequence[float], asked: dict[str, Any], seed: int) -> None:
    limits = httpx.Limits(max_connections=OPEN_MAX)
    options: dict[str, Any] = {"headers": key_headers(), "timeout": TIMEOUT_S, "trust_env": heeds_proxies(base)}
    async with httpx.AsyncClient(base_url=base, limits=limits, **options) as client:
        try:
            answer = await client.get("/v1/models")
        except httpx.TransportError as error:
            raise nothing_answers(base, error) from None
        name = choose_model(answer, base, model)
        body = {"model": name, **asked, "stream": True, "stream_options": {"include_usage": True}}
        start = time.monotonic()
        sent = await send_all(client, body, times, seed)
    # A pipe has no width.
    Console(width=None if sys.stdout.isatty() else 120, highlight=False).print(
        summary(sent, max(time.monotonic() - start, 1e-9))
    )


def parse_rates(text: str) -> tuple[float, ...]:
    """Parse comma-separated requests per second. Raises ConfigError if they are not valid rates."""
    try:
        rates = tuple(float(part) for part in text.split(","))
    except ValueError:
        rates = ()
    if not rates or not all(0 <= rate <= OPEN_MAX for rate in rates):
        problem = f"it is not a list of numbers from 0 to {OPEN_MAX}"
        raise ConfigError("--per-second", text, problem, "Separate them with commas, such as 1,8,2.")
    return rates
