"""One comparison of servers from start to report: servers up, prompts chosen, passes timed, servers down."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from peagle.bench.core import machine
from peagle.bench.core.bench_settings import deployment_settings, flat_settings, load_settings, weights_of
from peagle.bench.core.journal import Journal, Sitting
from peagle.bench.core.options import LoadOptions
from peagle.bench.core.output import prompt_figures, result_head
from peagle.bench.core.session import IDLE_CORES_ALLOWED, IDLE_SECONDS, Job, time_passes
from peagle.bench.core.turns import assemble, rotated
from peagle.bench.core.workloads import read_prompts
from peagle.bench.servers.compared_servers import Server, Side, side_deployment, sides_of
from peagle.bench.servers.completions import Completions, client_session
from peagle.bench.servers.overhead import Passes, Subject
from peagle.bench.servers.overhead_report import FORM, overhead_rows, verdict_rows
from peagle.bench.servers.process_cpu import used_s
from peagle.bench.servers.served import ChosenTexts, ServedPass, choose_texts
from peagle.config import Deployment
from peagle.engine.arguments import drafted_depth
from peagle.engine.checks.drafter_checks import check_checkpoints
from peagle.errors import ConfigError
from peagle.host import processes
from peagle.host.terminal import Terminal
from peagle.serve.launch.machine_checks import check_engine

OVERHEAD = "overhead"
LOGS = "logs"
PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class OverheadJob(Job):
    """A comparison of servers started for it, all with the same deployment."""

    entries = (ChosenTexts, ServedPass)
    form = FORM
    log = "overhead.log"
    variants: Sequence[Side]
    deployment: Deployment

    @classmethod
    def of(cls, deployment: Deployment, names: Sequence[str], concurrencies: Sequence[int], load: LoadOptions) -> Self:
        """Make the job. Raises ConfigError if the options are inconsistent with each other or the file."""
        sides, most = sides_of(names), max(concurrencies)
        served = side_deployment(deployment, len({side.server for side in sides}), eager=load.eager)
        load.check(concurrencies)
        check_checkpoints(deployment)
        for name, limit in (
            ("engine.max_num_seqs", served.engine.get("max_num_seqs")),
            ("routing.max_ongoing_requests", served.routing.max_ongoing_requests),
        ):
            if isinstance(limit, int) and limit < most:
                problem = f"{name} of {served.name} is {limit}"
                raise ConfigError("--concurrency", most, problem, "Lower it, or raise the setting.")
        texts = read_prompts(load.prompts_from, as_chat=load.chat)
        settings = {
            "kind": OVERHEAD,
            "--sides": list(names),
            "--concurrency": list(concurrencies),
            **load_settings(load, texts),
            "machine": machine.identity(),
            "deployment": deployment_settings(served),
        }
        return cls(sides, concurrencies, load, texts, flat_settings(settings), served)

    async def measure(self, journal: Journal, folder: Path, terminal: Terminal) -> None:
        check_engine([self.deployment])
        load_before = machine.load()
        processes.adopt_orphans()
        servers: list[Server] = []
        try:
            # In rotating order, so that no server always allocates its memory first or last.
            number = len(journal.sittings)
            names = list(dict.fromkeys(side.server for side in rotated(self.variants, number)))
            await _start(names, self.deployment, servers, folder / LOGS / str(number + 1), terminal)
            journal.keep(Sitting(load_before, await _idle_cores(servers, terminal)))
            async with AsyncExitStack() as stack:
                subjects = {}
                running = {server.name: server for server in servers}
                for side in self.variants:
                    http, server = await stack.enter_async_context(client_session()), running[side.server]
                    client = Completions(http, server.url, self.deployment.name, self.load.tokens)
                    subjects[side.name] = Subject(side, server, client)
                await _time_passes(self, journal, subjects, terminal)
        finally:
            with terminal.stage("Stop"):
                for server in servers:
                    server.stop()
                processes.end_descendants(PATIENCE_S)

    def result(self, journal: Journal) -> dict[str, Any]:
        runs = assemble(self.variants, self.planned(journal), journal.made)
        depth = min(drafted_depth(self.deployment), self.deployment.speculation.depth_static)
        return {
            **result_head(OVERHEAD, journal, self.load),
            "model": self.deployment.name,
            "target": weights_of(self.deployment.target),
            "idle_cores": max(each.idle_cores for each in journal.sittings),
            "eager": self.load.eager,
            "sides": [side.name for side in self.variants],
            "depth": depth,
            "prompts": prompt_figures(journal),
            "rows": overhead_rows(runs, depth),
            "verdicts": verdict_rows(runs),
        }


async def _start(
    names: Sequence[str], deployment: Deployment, servers: list[Server], logs: Path, terminal: Terminal
) -> None:
    """Append each server to `servers`, so that after a failure the started servers can be stopped."""
    for number, name in enumerate(names, start=1):
        with terminal.stage(f"Start server {number} of {len(names)}: {name}"):
            server = Server.start(name, deployment, logs)
            servers.append(server)
            await server.wait_until_ready()


async def _idle_cores(servers: Sequence[Server], terminal: Terminal) -> float:
    """Return the CPU use of the idle servers in cores, and warn if it is high."""
    before = [server.cpu() for server in servers]
    await asyncio.sleep(IDLE_SECONDS)
    cores = {
        server.name: sum(used_s(early, server.cpu()).values()) / IDLE_SECONDS
        for server, early in zip(servers, before, strict=True)
    }
    if sum(cores.values()) > IDLE_CORES_ALLOWED:
        each = ", ".join(f"{name} {busy:.2f}" for name, busy in cores.items())
        terminal.say(f"Idle servers keep cores busy, which slows down the timed server: {each}.")
    return sum(cores.values())


async def _time_passes(job: OverheadJob, journal: Journal, subjects: Mapping[str, Subject], terminal: Terminal) -> None:
    await choose_texts(job, journal, terminal, next(iter(subjects.values())).client.count_tokens)
    await time_passes(job, journal, terminal, Passes(subjects).make, ServedPass)
