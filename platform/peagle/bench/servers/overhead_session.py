"""One comparison of servers from start to report: servers up, prompts chosen, passes timed, servers down."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from peagle.bench.core import machine
from peagle.bench.core.bench_settings import OVERHEAD, overhead_settings, weights_of
from peagle.bench.core.journal import Journal, Sitting
from peagle.bench.core.options import OverheadOptions
from peagle.bench.core.output import result_head, write_overhead
from peagle.bench.core.workloads import read_prompts
from peagle.bench.engines.engine_plan import rotated
from peagle.bench.engines.engine_session import IDLE_CORES_ALLOWED, IDLE_SECONDS
from peagle.bench.servers.compared_servers import PEAGLE, Server, Side, side_deployment, sides_of
from peagle.bench.servers.completions import Completions, Reply, client_session
from peagle.bench.servers.overhead import Passes
from peagle.bench.servers.overhead_rows import overhead_rows, verdict_rows
from peagle.bench.servers.process_cpu import Reading, used_s
from peagle.bench.servers.served import served_runs
from peagle.bench.servers.served_session import ServedJob, choose_texts, measure_until_done, prompt_figures, time_passes
from peagle.config import Deployment
from peagle.engine.arguments import drafted_depth
from peagle.engine.checks.drafter_checks import check_checkpoints
from peagle.errors import ConfigError
from peagle.host import processes
from peagle.host.terminal import Terminal
from peagle.prompt_file import Prompt
from peagle.serve.launch.machine_checks import check_engine

LOGS = "logs"
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class OverheadJob(ServedJob):
    """A comparison of servers that are started for it, all with one deployment."""

    variants: Sequence[Side]
    deployment: Deployment

    @classmethod
    def of(cls, deployment: Deployment, options: OverheadOptions) -> Self:
        """Raises ConfigError where the options do not fit each other or the file."""
        sides, load, most = sides_of(options.sides), options.load, max(options.concurrencies)
        served = side_deployment(deployment, len({side.server for side in sides}), eager=load.eager)
        load.check(options.concurrencies)
        check_checkpoints(deployment)
        for name, limit in (
            ("engine.max_num_seqs", served.engine.get("max_num_seqs")),
            ("routing.max_ongoing_requests", served.routing.max_ongoing_requests),
        ):
            if isinstance(limit, int) and limit < most:
                problem = f"{name} of {served.name} is {limit}"
                raise ConfigError("--concurrency", most, problem, "Lower the one or raise the other.")
        texts = read_prompts(load.prompts_from, as_chat=load.chat)
        settings = overhead_settings(served, options, texts, machine.identity())
        return cls(sides, options.concurrencies, load, texts, settings, served)


@dataclass(frozen=True, slots=True)
class _Subject:
    """A side with its server and the client of that."""

    side: Side
    server: Server
    client: Completions

    async def prepare(self) -> None:
        if self.side.server == PEAGLE:
            await self.client.count(self.side.is_counted)

    async def ask(self, prompt: Prompt, cache_salt: str) -> Reply:
        return await self.client.ask(prompt, cache_salt)

    async def scrape(self) -> None:
        await self.client.scrape()

    def cpu(self) -> Reading:
        return self.server.cpu()

    def client_cpu_s(self) -> float:
        times = os.times()
        return times.user + times.system


async def compare_servers(job: OverheadJob, folder: Path, terminal: Terminal) -> None:
    """Measure what `folder` does not have yet, print the table and write the results beside it.

    Raises:
        ConfigError: The folder holds a run with other settings, or the options do not fit the model.
        StartupError: A server does not start, or fails.
    """
    with Journal.open(folder, job.settings) as journal:
        await measure_until_done(job, journal, folder, terminal, lambda: _measure(job, journal, folder, terminal))
        result = _result(job, journal)
    write_overhead(result, folder, terminal)


async def _measure(job: OverheadJob, journal: Journal, folder: Path, terminal: Terminal) -> None:
    check_engine([job.deployment])
    load_before = machine.load()
    processes.adopt_orphans()
    servers: list[Server] = []
    try:
        # None is always the first, or the last, to find its place in the machine's memory.
        number = len(journal.sittings)
        names = list(dict.fromkeys(side.server for side in rotated(job.variants, number)))
        await _start(names, job.deployment, servers, folder / LOGS / str(number + 1), terminal)
        journal.sit(Sitting(load_before, await _idle_cores(servers, terminal)))
        async with AsyncExitStack() as stack:
            subjects = {}
            running = {server.name: server for server in servers}
            for side in job.variants:
                http, server = await stack.enter_async_context(client_session()), running[side.server]
                client = Completions(http, server.url, job.deployment.name, job.load.tokens)
                subjects[side.name] = _Subject(side, server, client)
            await _time_passes(job, journal, subjects, terminal)
    finally:
        with terminal.stage("Stop"):
            for server in servers:
                server.stop()
            processes.end_descendants(PATIENCE_S)


async def _start(
    names: Sequence[str], deployment: Deployment, servers: list[Server], logs: Path, terminal: Terminal
) -> None:
    """Append each server to `servers`, so that a failure leaves those that did start to be stopped."""
    for number, name in enumerate(names, start=1):
        with terminal.stage(f"Start server {number} of {len(names)}: {name}"):
            server = Server.start(name, deployment, logs)
            servers.append(server)
            await server.wait_until_ready()


async def _idle_cores(servers: Sequence[Server], terminal: Terminal) -> float:
    """CPU time that the servers use while nothing is asked of them, in cores; said where it is much."""
    before = [server.cpu() for server in servers]
    await asyncio.sleep(IDLE_SECONDS)
    cores = {
        server.name: sum(used_s(early, server.cpu()).values()) / IDLE_SECONDS
        for server, early in zip(servers, before, strict=True)
    }
    if sum(cores.values()) > IDLE_CORES_ALLOWED:
        each = ", ".join(f"{name} {busy:.2f}" for name, busy in cores.items())
        terminal.say(f"Idle servers keep cores busy, which slows the one that is timed: {each}.")
    return sum(cores.values())


async def _time_passes(
    job: OverheadJob, journal: Journal, subjects: Mapping[str, _Subject], terminal: Terminal
) -> None:
    texts = await choose_texts(job, journal, terminal, next(iter(subjects.values())).client.count_tokens)
    passes = Passes(subjects, frozenset(side.name for side in job.variants if side.is_counted), texts.prompts)
    await time_passes(job, journal, terminal, passes.make)


def _result(job: OverheadJob, journal: Journal) -> dict[str, Any]:
    assert journal.texts is not None, "prompts are chosen before anything is complete"
    sides = [side.name for side in job.variants]
    runs = served_runs(sides, job.planned(journal), journal.served)
    depth = min(drafted_depth(job.deployment), job.deployment.speculation.depth_static)
    return {
        **result_head(OVERHEAD, journal, job.load),
        "model": job.deployment.name,
        "target": weights_of(job.deployment.target),
        "idle_cores": max(each.idle_cores for each in journal.sittings),
        "eager": job.load.eager,
        "sides": sides,
        "depth": depth,
        "prompts": prompt_figures(journal.texts),
        "rows": overhead_rows(runs, depth),
        "verdicts": verdict_rows(runs),
    }
