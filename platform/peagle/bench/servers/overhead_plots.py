"""Pictures of a comparison of servers: output tokens/s, and where the CPU's time goes."""

from collections.abc import Mapping
from typing import Any

from matplotlib import rc_context

from peagle.bench.core.plots import SETTINGS, add_series, new_axes, svg
from peagle.bench.servers.compared_servers import PEAGLE, UNMETERED, VLLM

STYLES = {VLLM: ("#808080", "s", ":"), PEAGLE: ("#3b82d6", "o", "-"), UNMETERED: ("#a45fd0", "D", "-.")}
ROLES_MAX = 6
"""Roles that have a colour of their own; all others are one."""


def draw(result: Mapping[str, Any]) -> dict[str, bytes]:
    """By file name."""
    rows = result["rows"]
    series = {name: [row for row in rows if row["method"] == name] for name in result["sides"]}
    with rc_context(SETTINGS):
        canvas, axes = new_axes("Requests at once", "Output tokens/s")
        add_series(axes, series, "output_tokens_per_s", STYLES)
        return {"throughput.svg": svg(canvas, axes), "cpu.svg": _cpu(rows)}


def _cpu(rows: list[Mapping[str, Any]]) -> bytes:
    """A bar for each row, of what its processes use."""
    canvas, axes = new_axes("", "CPU seconds\nfor 1,000 output tokens")
    shares = [row["cpu_s_per_1000_tokens_by_process"] for row in rows]
    total: dict[str, float] = {}
    for share in shares:
        for role, seconds in share.items():
            total[role] = total.get(role, 0.0) + seconds
    ranked = sorted(total, key=lambda role: -total[role])
    parts = [*((role, [role]) for role in ranked[:ROLES_MAX]), ("the rest", ranked[ROLES_MAX:])]
    below = [0.0] * len(rows)
    for name, roles in parts:
        heights = [sum(share.get(role, 0.0) for role in roles) for share in shares]
        axes.bar(range(len(rows)), heights, bottom=below, label=name)
        below = [low + height for low, height in zip(below, heights, strict=True)]
    names = [f"{row['method']}\n{row['concurrency']} at once" for row in rows]
    axes.set_xticks(range(len(rows)), names, fontsize=8, rotation=30, ha="right")
    return svg(canvas, axes)
