"""Service level objectives: recorded ratios and burn-rate alerts.

The windows and factors are those of Google's SRE workbook (chapter 5, "Multiwindow, multi-burn-rate alerts"): a page
if 2 % of a month's budget burns in one hour or 5 % in six, a ticket if 10 % burns in one day or in three.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from dashboards.rules import Alert, Recording

BY = "namespace, model"


@dataclass(frozen=True, slots=True)
class Burn:
    """A burn rate. Each of `pairs` is a long window, a short window, and a multiple of the budget."""

    name: str
    severity: str
    lasts: str
    pairs: tuple[tuple[str, str, float], ...]


BURNS = (
    Burn("Fast", "critical", "2m", (("1h", "5m", 14.4), ("6h", "30m", 6.0))),
    Burn("Slowly", "warning", "1h", (("1d", "2h", 3.0), ("3d", "6h", 1.0))),
)
WINDOWS = sorted({window for burn in BURNS for long, short, _ in burn.pairs for window in (long, short)})


@dataclass(frozen=True, slots=True)
class Objective:
    """`share` of the values in `histogram` is at most `within_s`, which is one of its bucket bounds."""

    name: str
    alert: str
    histogram: str
    within_s: float
    share: float
    text: str
    runbook: str

    def recorded(self, window: str) -> str:
        """Name of the recorded share of values that were too slow, over `window`."""
        return f"model:peagle_{self.name}_slow:ratio_rate{window}"

    def recordings(self) -> Iterator[Recording]:
        bound = str(float(self.within_s))
        for window in WINDOWS:
            good = f'sum by ({BY}) (rate({self.histogram}_bucket{{le="{bound}"}}[{window}]))'
            yield Recording(
                self.recorded(window), f"1 - {good} / sum by ({BY}) (rate({self.histogram}_count[{window}]))"
            )

    def alerts(self) -> Iterator[Alert]:
        """Yield one alert per burn rate."""
        budget = 1.0 - self.share
        for burn in BURNS:
            burns = [
                f"({self.recorded(long)} > {factor * budget:.4g} and {self.recorded(short)} > {factor * budget:.4g})"
                for long, short, factor in burn.pairs
            ]
            yield Alert(
                name=f"{self.alert}{burn.name}",
                expr=" or ".join(burns),
                lasts=burn.lasts,
                severity=burn.severity,
                summary=f"{self.text} of {{{{ $labels.model }}}} is too long; its budget burns {burn.name.lower()}.",
                runbook=self.runbook,
            )


OBJECTIVES = (
    Objective(
        name="ttft",
        alert="PeagleTtftBudgetBurns",
        histogram="peagle_request_ttft_seconds",
        within_s=2.5,
        share=0.95,
        text="Time to first token",
        runbook=(
            "95 % of streams should have their first token within 2.5 s. See Overview: if the engine's queue grows, "
            "there are too few replicas: raise replicas.max. If the platform's own share grows, see Router for a busy "
            "ingress process or unbalanced replicas. If neither grows, prompts are long: see Engine for "
            "prefill time and prefix cache hits."
        ),
    ),
    Objective(
        name="itl",
        alert="PeagleItlBudgetBurns",
        # The engine's series, because with a `stream_interval` above 1 the API sees several outputs as one.
        histogram="peagle_replica_itl_seconds",
        within_s=0.1,
        share=0.99,
        text="Time between the engine's outputs",
        runbook=(
            "99 % of outputs should follow the previous one within 0.1 s. See Engine: large batches, preemptions and "
            "long prefills make steps long: lower max_num_seqs, or raise replicas.max. If steps are long at small "
            "batches, see Speculation for too large a K, and lower speculation.depth_max."
        ),
    ),
)
