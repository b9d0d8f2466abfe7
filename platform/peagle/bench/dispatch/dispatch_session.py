"""One comparison of dispatch policies from start to report."""

import json
import shlex
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ray

from peagle.bench.core import machine
from peagle.bench.core.journal import JOURNAL, RESULT
from peagle.bench.core.output import REPORT, replace
from peagle.bench.core.turns import rotated
from peagle.bench.dispatch.compared_policies import COMPARED
from peagle.bench.dispatch.decision_cost import time_decisions
from peagle.bench.dispatch.dispatch_report import (
    SCHEMA_VERSION,
    Runs,
    decision_line,
    dispatch_markdown,
    dispatch_rows,
    dispatch_table,
)
from peagle.bench.dispatch.dispatchers import FleetPlan, run, start
from peagle.bench.dispatch.fleet_load import mixed_arrivals
from peagle.errors import ConfigError
from peagle.host import processes
from peagle.host.terminal import Terminal
from peagle.router.dispatch import POLICIES
from peagle.serve.launch import ray_cluster

WARM_UP_REQUESTS = 60


@dataclass(frozen=True, slots=True)
class DispatchOptions:
    """Options: `slow` of the `replicas` run at half speed; `callers` processes dispatch."""

    replicas: int
    slow: int
    callers: int
    requests: int
    requests_per_s: float
    repeats: int
    policies: tuple[str, ...] = COMPARED

    @property
    def speeds(self) -> list[float]:
        return [0.5] * self.slow + [1.0] * (self.replicas - self.slow)


def compare_dispatch(options: DispatchOptions, folder: Path, terminal: Terminal) -> None:
    """Run the comparison on its own Ray cluster, print its table and write `result.json` and `report.md`.

    Raises ConfigError if `folder` already has a result or an unfinished run.
    """
    for name in (RESULT, JOURNAL):
        if (folder / name).exists():
            raise ConfigError("--out", str(folder), f"it already has a {name}", "Name a new folder.")
    context: dict[str, Any] = {"hardware": machine.hardware(), "commit": machine.commit()}
    with terminal.stage("Time decisions over a thousand replicas"):
        context["decision"] = asdict(time_decisions())
    ray_cluster.prepare_environment()
    processes.adopt_orphans()
    try:
        with terminal.stage(f"Start {len(options.policies)} fleets of {options.replicas} replicas on Ray Serve"):
            ray.init(
                address="local",
                include_dashboard=False,
                object_store_memory=ray_cluster.OBJECT_STORE_BYTES,
                log_to_driver=True,
            )
            callers = start(FleetPlan(options.speeds, options.callers, options.policies))
        runs = _measure(options, callers, terminal)
    finally:
        with terminal.stage("Stop"):
            ray_cluster.leave(None, lambda step: step())
            processes.end_descendants(patience_s=10.0)
    result = {
        "schema_version": SCHEMA_VERSION,
        "command": shlex.join(["peagle", *sys.argv[1:]]),
        **context,
        "speeds": options.speeds,
        "callers": options.callers,
        "requests": options.requests,
        "requests_per_s": options.requests_per_s,
        "repeats": options.repeats,
        "rows": dispatch_rows(runs, POLICIES),
    }
    replace(folder / REPORT, dispatch_markdown(result).encode())
    replace(folder / RESULT, json.dumps(result, indent=2).encode() + b"\n")
    terminal.console.print(dispatch_table(result["rows"]), soft_wrap=False)
    terminal.say(decision_line(result["decision"]))
    terminal.say(f"Written: {RESULT}, {REPORT} in {folder}")


def _measure(options: DispatchOptions, callers: list[Any], terminal: Terminal) -> Runs:
    """Run every policy on the same requests in each repeat, in rotating order."""
    with terminal.stage("Warm up"):
        for policy in options.policies:
            run(callers, policy, mixed_arrivals(WARM_UP_REQUESTS, options.requests_per_s, seed=-1))
    runs: dict[str, list[Any]] = {policy: [] for policy in options.policies}
    for repeat in range(options.repeats):
        arrivals = mixed_arrivals(options.requests, options.requests_per_s, seed=repeat)
        for policy in rotated(options.policies, repeat):
            with terminal.stage(f"Repeat {repeat + 1} of {options.repeats}: {policy}"):
                runs[policy].append(run(callers, policy, arrivals))
    return runs
