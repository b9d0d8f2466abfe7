"""One measurement of running servers from start to report: models found, prompts chosen, passes timed."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import httpx

from peagle.bench.core import machine
from peagle.bench.core.bench_settings import ENDPOINTS, endpoint_settings
from peagle.bench.core.closed_loop import closed_loop
from peagle.bench.core.journal import Journal, Sitting
from peagle.bench.core.options import EndpointOptions
from peagle.bench.core.output import result_head, write_endpoints
from peagle.bench.core.workloads import prompt_sets, read_prompts
from peagle.bench.engines.speculation import PassKey
from peagle.bench.servers.completions import Completions, client_session
from peagle.bench.servers.endpoint_rows import endpoint_rows
from peagle.bench.servers.endpoints import LAST_STEPS_S, Endpoint, EndpointClient, EndpointVariant
from peagle.bench.servers.served import ServedPass, served_runs
from peagle.bench.servers.served_session import ServedJob, choose_texts, measure_until_done, prompt_figures, time_passes
from peagle.client.running_server import choose_model, key_headers, nothing_answers
from peagle.client.server_url import base_url, heeds_proxies
from peagle.errors import ConfigError
from peagle.host.terminal import Terminal


@dataclass(frozen=True, slots=True)
class EndpointJob(ServedJob):
    """A measurement of servers that run already. The first is what the others are held against."""

    variants: Sequence[EndpointVariant]
    endpoints: Sequence[Endpoint]

    @classmethod
    def of(cls, options: EndpointOptions) -> Self:
        """Ask every server for its model.

        Raises:
            ConfigError: The options do not fit each other.
            StartupError: A server does not answer, or does not serve the model.
        """
        options.load.check(options.concurrencies)
        endpoints = [_found(name, url, options.model) for name, url in _named(options.addresses).items()]
        variants = [EndpointVariant(each, depth) for each in endpoints for depth in (None, *options.depths)]
        texts = read_prompts(options.load.prompts_from, as_chat=options.load.chat)
        settings = endpoint_settings([asdict(each) for each in endpoints], options, texts, machine.identity())
        return cls(variants, options.concurrencies, options.load, texts, settings, endpoints)


def _named(addresses: Sequence[str]) -> dict[str, str]:
    """Addresses by name: the one before `=`, else host and port."""
    named: dict[str, str] = {}
    for text in addresses:
        before, equals, behind = text.partition("=")
        is_named = bool(equals) and "://" not in before  # an address may hold one itself
        url = base_url(behind if is_named else text)
        name = before if is_named else httpx.URL(url).netloc.decode()
        if not name or name in named:
            raise ConfigError("URL", text, "another one has that name", "Write NAME=URL, each name once.")
        named[name] = url
    return named


def _found(name: str, url: str, model: str | None) -> Endpoint:
    try:
        answer = httpx.get(f"{url}/v1/models", headers=key_headers(), timeout=30.0, trust_env=heeds_proxies(url))
    except httpx.TransportError as error:
        raise nothing_answers(url, error) from None
    return Endpoint(name, url, choose_model(answer, url, model))


async def measure_endpoints(
    job: EndpointJob, folder: Path, terminal: Terminal, price_per_hour: float | None = None
) -> None:
    """Measure what `folder` does not have yet, print the table and write the results beside it.

    Raises:
        ConfigError: The folder holds a run with other settings, or a server's K cannot be set as asked.
        StartupError: A server fails.
    """
    with Journal.open(folder, job.settings) as journal:
        if journal.served and job.remaining(journal):
            terminal.say("If these are not the servers that it began with, stop, and name a new folder with --out.")
        await measure_until_done(job, journal, folder, terminal, lambda: _measure(job, journal, terminal))
        result = _result(job, journal, price_per_hour)
    write_endpoints(result, folder, terminal)


async def _measure(job: EndpointJob, journal: Journal, terminal: Terminal) -> None:
    journal.sit(Sitting(machine.load(), idle_cores=0.0))
    async with _clients(job) as clients:
        for name in dict.fromkeys(each.endpoint.name for each in job.variants if each.depth is not None):
            await clients[name].check_pins()
        texts = await choose_texts(job, journal, terminal, clients[job.endpoints[0].name].completions.count_tokens)
        variants, salts = {each.name: each for each in job.variants}, itertools.count()
        start = uuid4().hex  # what an earlier start asked may still be in a server's cache

        async def make(key: PassKey) -> ServedPass:
            variant = variants[key.variant]
            client, prompts = clients[variant.endpoint.name], prompt_sets(texts.prompts, key.concurrency)
            salt = f"{start}-{next(salts)}"
            async with client.pinned(variant.depth) if variant.depth is not None else nullcontext():
                before = await client.counts()
                seconds, replies = await closed_loop(
                    lambda prompt: client.completions.ask(prompt, salt), prompts[key.prompt_set], key.concurrency
                )
                await asyncio.sleep(LAST_STEPS_S)
                return ServedPass(seconds, replies, counts=await client.counts() - before)

        await time_passes(job, journal, terminal, make)


@asynccontextmanager
async def _clients(job: EndpointJob) -> AsyncIterator[Mapping[str, EndpointClient]]:
    clients = {}
    try:
        for each in job.endpoints:
            http = client_session(key_headers(), trust_env=heeds_proxies(each.url))
            clients[each.name] = EndpointClient(each, http, Completions(http, each.url, each.model, job.load.tokens))
        yield clients
    finally:
        for client in clients.values():
            await client.http.close()


def _result(job: EndpointJob, journal: Journal, price_per_hour: float | None) -> dict[str, Any]:
    assert journal.texts is not None, "prompts are chosen before anything is complete"
    runs = served_runs([each.name for each in job.variants], job.planned(journal), journal.served)
    models = list(dict.fromkeys(each.model for each in job.endpoints))
    return {
        **result_head(ENDPOINTS, journal, job.load),
        "model": ", ".join(models),
        "target": models[0],
        "endpoints": [asdict(each) for each in job.endpoints],
        "prompts": prompt_figures(journal.texts),
        "price_per_hour": price_per_hour,
        "rows": endpoint_rows(job.variants, runs, price_per_hour),
    }
