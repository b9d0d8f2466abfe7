"""Tables of `peagle cluster` on the terminal."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from peagle.cluster.preflight.outcome import Check, Outcome
from peagle.cluster.release_status import ReleaseStatus

STYLES = {Outcome.PASS: "green", Outcome.WARN: "yellow", Outcome.FAIL: "bold red"}
PIPE_COLUMNS = 160


def console() -> Console:
    # A pipe has no width, and truncated rows are hard to search.
    return Console(width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def print_checks(checks: Sequence[Check]) -> None:
    """Print each check with its outcome and fix, then their count."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("", "check", "found", "fix"):
        table.add_column(heading, overflow="fold")
    for check in checks:
        outcome = f"[{STYLES[check.outcome]}]{check.outcome}[/]"
        table.add_row(outcome, escape(check.subject), escape(check.detail), escape(check.fix))
    screen = console()
    screen.print(table)
    counts = {each: sum(check.outcome is each for check in checks) for each in Outcome}
    screen.print("\n" + ", ".join(f"{count} {each}" for each, count in counts.items()), highlight=False)


def print_status(status: ReleaseStatus) -> None:
    """Print RayServices, pods and replicas, each with its problems."""
    screen = console()
    for service in status.services:
        held = ", ".join(service.conditions) or "no condition is true"
        parts = ", ".join(f"{name} {state.lower()}" for name, state in service.deployments.items())
        screen.print(
            f"{escape(service.name)}: {escape(held)} · {escape(parts or 'no deployment yet')}", highlight=False
        )
        if service.problem:
            screen.print(f"  {escape(service.problem)}", highlight=False)
    table = Table(title="Pods", title_justify="left")
    for heading in ("pod", "kind", "node", "phase", "ready", "restarts", "problem"):
        table.add_column(heading, overflow="fold")
    for pod in status.pods:
        node = f"{pod.node} (cordoned)" if pod.is_node_leaving else pod.node
        cells = (pod.name, pod.kind, node, pod.phase, "yes" if pod.is_ready else "no", str(pod.restarts), pod.problem)
        table.add_row(*map(escape, cells))
    screen.print(table)
    if status.fleet is None:
        screen.print(f"Replicas cannot be read: {escape(status.fleet_problem)}", highlight=False)
        return
    table = Table(title="Replicas", title_justify="left", caption="K: requested / effective")
    for heading in ("model", "replica", "node", "state", "K", "AL", "running", "waiting"):
        table.add_column(heading, overflow="fold")
    for model in status.fleet["models"]:
        for replica in model["replicas"] or [{}]:
            table.add_row(escape(str(model["name"])), *map(escape, _cells(replica)))
    screen.print(table)


def _cells(replica: dict[str, object]) -> list[str]:
    depths = replica.get("depths")
    asked = f"{max(depths)}" if isinstance(depths, list) and depths else "-"
    effective, length = replica.get("depth_effective"), replica.get("acceptance_length")
    return [
        str(replica.get("id", "no replica")),
        str(replica.get("node", "-")),
        str(replica.get("state", "-")),
        f"{asked} / {effective:.1f}" if isinstance(effective, float) else asked,
        f"{length:.2f}" if isinstance(length, float) else "-",
        str(replica.get("running_requests", "-")),
        str(replica.get("waiting_requests", "-")),
    ]
