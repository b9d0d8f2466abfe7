"""One measurement of running servers from start to report: models found, prompts chosen, passes timed."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import httpx

from peagle.bench.core import machine
from peagle.bench.core.bench_settings import flat_settings, load_settings
from peagle.bench.core.closed_loop import closed_loop
from peagle.bench.core.journal import Journal, Sitting
from peagle.bench.core.options import LoadOptions
from peagle.bench.core.output import prompt_figures, result_head
from peagle.bench.core.records import Run
from peagle.bench.core.session import Job, time_passes
from peagle.bench.core.turns import assemble
from peagle.bench.core.workloads import read_prompts
from peagle.bench.servers.completions import Completions, Reply, client_session
from peagle.bench.servers.endpoint_report import FORM, endpoint_rows
from peagle.bench.servers.endpoints import LAST_STEPS_S, Endpoint, EndpointClient, EndpointVariant
from peagle.bench.servers.served import ChosenTexts, ServedPass, choose_texts
from peagle.client.running_server import choose_model, key_headers, nothing_answers
from peagle.client.server_url import base_url, heeds_proxies
from peagle.errors import ConfigError
from peagle.host.terminal import Terminal
from peagle.prompt_file import Prompt

ENDPOINTS = "endpoints"


@dataclass(frozen=True, slots=True)
class EndpointJob(Job):
    """A measurement of running servers; the first is the reference."""

    entries = (ChosenTexts, ServedPass)
    form = FORM
    log = "endpoints.log"
    variants: Sequence[EndpointVariant]
    endpoints: Sequence[Endpoint]
    price_per_hour: float | None

    @classmethod
    def of(
        cls,
        addresses: Sequence[str],
        model: str | None,
        depths: Sequence[int],
        concurrencies: Sequence[int],
        load: LoadOptions,
        price_per_hour: float | None = None,
    ) -> Self:
        """Read every server's model, which is also measured at each pinned K of `depths`.

        Raises:
            ConfigError: The options are inconsistent.
            StartupError: A server does not answer, or does not serve the model.
        """
        load.check(concurrencies)
        endpoints = [_found(name, url, model) for name, url in _named(addresses).items()]
        variants = [EndpointVariant(each, depth) for each in endpoints for depth in (None, *depths)]
        texts = read_prompts(load.prompts_from, as_chat=load.chat)
        settings = {
            "kind": ENDPOINTS,
            "endpoints": {each.name: asdict(each) for each in endpoints},
            "--depths": list(depths),
            "--concurrency": list(concurrencies),
            **load_settings(load, texts),
            "machine": machine.identity(),
        }
        return cls(variants, concurrencies, load, texts, flat_settings(settings), endpoints, price_per_hour)

    async def measure(self, journal: Journal, folder: Path, terminal: Terminal) -> None:
        if journal.made:
            terminal.say("If the run was started with other servers, stop, and name a new folder with --out.")
        journal.keep(Sitting(machine.load(), idle_cores=0.0))
        async with AsyncExitStack() as stack:
            clients = {}
            for each in self.endpoints:
                http = client_session(key_headers(), trust_env=heeds_proxies(each.url))
                asked = Completions(await stack.enter_async_context(http), each.url, each.model, self.load.tokens)
                clients[each.name] = EndpointClient(each, http, asked)
            for name in dict.fromkeys(each.endpoint.name for each in self.variants if each.depth is not None):
                await clients[name].check_pins()
            await choose_texts(self, journal, terminal, clients[self.endpoints[0].name].completions.count_tokens)

            async def make(variant: EndpointVariant, prompts: Sequence[Prompt], concurrency: int) -> Run[Reply]:
                client = clients[variant.endpoint.name]
                salt = uuid4().hex  # earlier prompts may still be in a server's cache
                async with client.pinned(variant.depth) if variant.depth is not None else nullcontext():
                    before = await client.counts()
                    seconds, replies = await closed_loop(
                        lambda prompt: client.completions.ask(prompt, salt), prompts, concurrency
                    )
                    await asyncio.sleep(LAST_STEPS_S)
                    return Run(seconds, traces=replies, counts=await client.counts() - before)

            await time_passes(self, journal, terminal, make, ServedPass)

    def result(self, journal: Journal) -> dict[str, Any]:
        runs = assemble(self.variants, self.planned(journal), journal.made)
        models = list(dict.fromkeys(each.model for each in self.endpoints))
        return {
            **result_head(ENDPOINTS, journal, self.load),
            "model": ", ".join(models),
            "target": models[0],
            "endpoints": [asdict(each) for each in self.endpoints],
            "prompts": prompt_figures(journal),
            "price_per_hour": self.price_per_hour,
            "rows": endpoint_rows(runs, self.price_per_hour),
        }


def _named(addresses: Sequence[str]) -> dict[str, str]:
    """Return the URLs by name: the name before `=`, or else host and port."""
    named: dict[str, str] = {}
    for text in addresses:
        before, equals, behind = text.partition("=")
        is_named = bool(equals) and "://" not in before  # a URL may contain = itself
        url = base_url(behind if is_named else text)
        name = before if is_named else httpx.URL(url).netloc.decode()
        if not name or name in named:
            raise ConfigError("URL", text, "another server has that name", "Write NAME=URL, each name once.")
        named[name] = url
    return named


def _found(name: str, url: str, model: str | None) -> Endpoint:
    try:
        answer = httpx.get(f"{url}/v1/models", headers=key_headers(), timeout=30.0, trust_env=heeds_proxies(url))
    except httpx.TransportError as error:
        raise nothing_answers(url, error) from None
    return Endpoint(name, url, choose_model(answer, url, model))
