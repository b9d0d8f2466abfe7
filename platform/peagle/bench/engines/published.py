"""Published ratios, from `data/published.json`, which names their sources."""

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from peagle.bench.core.records import PEAGLE


@dataclass(frozen=True, slots=True)
class Published:
    """Ratio of P-EAGLE's output tokens/s to those of `rival` at each concurrency, each method at its best K."""

    model: str
    gpu: str
    workload: str
    source: str
    rival: str
    ratios: dict[int, float]

    @property
    def name(self) -> str:
        return f"{self.model}, {self.workload}" if self.workload else self.model


@cache
def published_ratios() -> tuple[Published, ...]:
    """Return every published ratio, as printed or computed from the printed tokens/s of the two methods."""
    entries = json.loads((files("peagle.bench") / "data" / "published.json").read_text(encoding="utf-8"))
    return tuple(
        Published(entry["model"], entry["gpu"], entry["workload"], entry["source"], rival, ratios)
        for entry in entries
        for rival, ratios in _ratios(entry).items()
    )


def _ratios(entry: dict[str, Any]) -> dict[str, dict[int, float]]:
    """Return the ratios by rival and concurrency."""
    found = {
        rival: {int(level): ratio for level, ratio in ratios.items()}
        for rival, ratios in entry.get("p_eagle_over", {}).items()
    }
    speeds = entry.get("tokens_per_s", {})
    for rival in speeds:
        if rival != PEAGLE:
            found[rival] = {int(level): speeds[PEAGLE][level] / speed for level, speed in speeds[rival].items()}
    return found
