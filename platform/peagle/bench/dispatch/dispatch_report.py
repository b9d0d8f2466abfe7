"""Results of a comparison of dispatch policies: plain values, Markdown, and a terminal table. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from peagle.bench.core.report_parts import median_cell, spread_cell
from peagle.bench.core.statistics import Spread, paired_ratio
from peagle.bench.dispatch.fleet_load import LONG_SHARE, PREFIXES, SHARED_SHARE, Sample

SCHEMA_VERSION = 1

Row = dict[str, Any]
Runs = Mapping[str, Sequence[Sequence[Sample]]]
"""One list of samples per repeat, by policy; all policies of a repeat have the same arrivals."""


def dispatch_rows(runs: Runs, ours: Collection[str]) -> list[Row]:
    """Return one row per policy; `ours` have ratios to the best other policy by median, repeat by repeat."""
    rows = [_row(policy, repeats) for policy, repeats in runs.items()]
    others = {policy: repeats for policy, repeats in runs.items() if policy not in ours}
    for row in rows:
        if row["policy"] in ours and others:
            row |= _ratios(runs[row["policy"]], others)
    return rows


def dispatch_table(rows: Sequence[Row]) -> Table:
    """Return a table for a terminal of 80 columns; `report.md` has the other figures."""
    caption = "TTFT p95 in ms; medians over repeats, ratios to the best of the others with extremes"
    table = Table(box=box.SIMPLE_HEAD, caption=caption, pad_edge=False, collapse_padding=True)
    for heading in ("policy", "TTFT", "x", "tokens/s", "x"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", no_wrap=True)
    for row in rows:
        table.add_row(
            row["policy"],
            median_cell(row["ttft_ms_p95"], "{:.0f}"),
            spread_cell(row.get("ttft_p95_ratio"), "{:.2f}"),
            median_cell(row["output_tokens_per_s"], "{:.0f}"),
            spread_cell(row.get("output_tokens_ratio"), "{:.2f}"),
        )
    return table


def dispatch_markdown(result: Mapping[str, Any]) -> str:
    """Return `report.md` from the values of `result.json`."""
    machine = result["hardware"]
    lines = [
        "# Dispatch",
        "",
        f"`{result['command']}`",
        "",
        f"- Machine: {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB; "
        f"load {machine['load_before']} before the start. Commit {result['commit'] or 'unknown'}.",
        f"- Real Ray Serve; each replica only simulates an engine's step times. Speeds: {result['speeds']}; "
        f"{result['callers']} processes dispatch.",
        f"- {result['requests']} requests per run, {result['requests_per_s']} per second; {LONG_SHARE:.0%} are long, "
        f"{SHARED_SHARE:.0%} share one of {PREFIXES} prefixes. {result['repeats']} repeats; in each, every policy "
        "gets the same requests.",
        f"- {decision_line(result['decision'])}",
        "",
        "| " + " | ".join(HEADINGS) + " |",
        "| --- |" + " ---: |" * (len(HEADINGS) - 1),
        *("| " + " | ".join(_cells(row)) + " |" for row in result["rows"]),
    ]
    return "\n".join(lines) + "\n"


def decision_line(decision: Mapping[str, Any]) -> str:
    """Return a line about the cost of a decision, from the values of `DecisionTimes`."""
    return (
        f"One decision over {decision['replicas']:,} replicas: {decision['cpu_us_p50']:.0f} µs of CPU time, 99th "
        f"percentile {decision['cpu_us_p99']:.0f} µs ({decision['elapsed_us_p99']:.0f} µs elapsed), of "
        f"{decision['decisions']:,}."
    )


HEADINGS = ("policy", "TTFT p50", "TTFT p95", "x", "tokens/s", "x", "largest share")


def _row(policy: str, repeats: Sequence[Sequence[Sample]]) -> Row:
    return {
        "policy": policy,
        "ttft_ms_p50": asdict(Spread.of([_ttft_ms(samples, 0.5) for samples in repeats])),
        "ttft_ms_p95": asdict(Spread.of([_ttft_ms(samples, 0.95) for samples in repeats])),
        "output_tokens_per_s": asdict(Spread.of([_tokens_per_s(samples) for samples in repeats])),
        "largest_share": asdict(Spread.of([_largest_share(samples) for samples in repeats])),
    }


def _ratios(ours: Sequence[Sequence[Sample]], others: Runs) -> Row:
    found: Row = {}
    for name, measure, best in (
        ("ttft_p95_ratio", lambda samples: _ttft_ms(samples, 0.95), min),
        ("output_tokens_ratio", _tokens_per_s, max),
    ):
        values = {policy: [measure(samples) for samples in repeats] for policy, repeats in others.items()}
        medians = {policy: Spread.of(each).median for policy, each in values.items()}
        rival = best(medians, key=lambda policy: medians[policy])
        found[name] = asdict(paired_ratio([measure(samples) for samples in ours], values[rival])) | {"to": rival}
    return found


def _ttft_ms(samples: Sequence[Sample], ratio: float) -> float:
    return 1000 * float(np.quantile([sample.ttft_s for sample in samples], ratio))


def _tokens_per_s(samples: Sequence[Sample]) -> float:
    ends_s = max(sample.due_s + sample.seconds for sample in samples)
    return sum(sample.tokens for sample in samples) / ends_s


def _largest_share(samples: Sequence[Sample]) -> float:
    return max(Counter(sample.replica for sample in samples).values()) / len(samples)


def _cells(row: Row) -> list[str]:
    return [
        row["policy"],
        spread_cell(row["ttft_ms_p50"], "{:.0f}"),
        spread_cell(row["ttft_ms_p95"], "{:.0f}"),
        spread_cell(row.get("ttft_p95_ratio"), "{:.2f}"),
        spread_cell(row["output_tokens_per_s"], "{:.0f}"),
        spread_cell(row.get("output_tokens_ratio"), "{:.2f}"),
        spread_cell(row["largest_share"], "{:.0%}"),
    ]
