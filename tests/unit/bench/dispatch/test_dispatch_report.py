"""Figures of a comparison of dispatch policies: ratios pair values of the same repeat."""

import random
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from peagle.bench.dispatch.dispatch_report import dispatch_markdown, dispatch_rows, dispatch_table
from peagle.bench.dispatch.dispatch_session import DispatchOptions, compare_dispatch
from peagle.bench.dispatch.fleet_load import PREFIX_TOKENS, Sample, burst, mixed_arrivals
from peagle.errors import ConfigError
from peagle.host.terminal import Terminal
from peagle.router.dispatch import POLICIES


def samples(ttft_s: float, replicas: int = 2) -> list[Sample]:
    return [Sample(float(place), ttft_s, 1.0, 10, f"r{place % replicas}") for place in range(10)]


RUNS = {
    "soonest": [samples(0.1), samples(0.3)],
    "round-robin": [samples(0.2), samples(0.4)],
    "worse": [samples(0.5), samples(0.5, replicas=1)],
}


def test_the_rival_is_the_best_of_the_others_and_ratios_are_taken_within_repeats() -> None:
    ours, rival, worse = dispatch_rows(RUNS, ("soonest",))
    assert ours["ttft_p95_ratio"] == {"median": pytest.approx(0.625), "low": 0.5, "high": 0.75, "to": "round-robin"}
    assert ours["output_tokens_ratio"]["median"] == pytest.approx(1.0)
    assert "ttft_p95_ratio" not in rival
    assert worse["largest_share"]["high"] == 1.0
    assert rival["output_tokens_per_s"]["median"] == pytest.approx(10.0), "100 tokens in the 10 s until the last ends"


def test_each_of_ours_is_held_against_the_others_and_not_against_ours() -> None:
    first, second, rival = dispatch_rows(RUNS, ("soonest", "round-robin"))
    assert (first["ttft_p95_ratio"]["to"], second["ttft_p95_ratio"]["to"]) == ("worse", "worse")
    assert "ttft_p95_ratio" not in rival
    assert "ttft_p95_ratio" not in dispatch_rows(RUNS, tuple(RUNS))[0], "there is no other"


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    console = Console(width=80, record=True, file=StringIO())
    runs = {**RUNS, **dict.fromkeys(POLICIES, RUNS["soonest"]), "power-of-two": RUNS["worse"]}
    console.print(dispatch_table(dispatch_rows(runs, POLICIES)))
    text = console.export_text()
    assert text.count("0.62 (0.50 to 0.75)") == len(POLICIES)
    assert all(policy in text for policy in (*POLICIES, "power-of-two"))
    assert "…" not in text


def test_the_report_names_the_machine_the_load_and_every_policy() -> None:
    result = {
        "command": "peagle bench dispatch",
        "hardware": {"processor": "X", "cores": 2, "memory_gib": 24, "load_before": 0.1},
        "commit": None,
        "speeds": [0.5, 1.0],
        "callers": 2,
        "requests": 10,
        "requests_per_s": 5.0,
        "repeats": 2,
        "decision": {
            "replicas": 1000,
            "decisions": 20_000,
            "cpu_us_p50": 30.2,
            "cpu_us_p99": 59.1,
            "elapsed_us_p50": 31.0,
            "elapsed_us_p99": 61.4,
        },
        "rows": dispatch_rows(RUNS, ("soonest",)),
    }
    text = dispatch_markdown(result)
    assert all(word in text for word in ("soonest", "round-robin", "2 cores", "0.62 (0.50 to 0.75)"))
    assert "over 1,000 replicas: 30 µs of CPU time, 99th percentile 59 µs (61 µs elapsed), of 20,000." in text


def test_arrivals_repeat_for_a_seed_and_share_beginnings() -> None:
    arrivals = mixed_arrivals(300, per_s=10.0, seed=3)
    assert arrivals == mixed_arrivals(300, per_s=10.0, seed=3)
    assert arrivals != mixed_arrivals(300, per_s=10.0, seed=4)
    assert arrivals[-1].at_s == pytest.approx(30.0, rel=0.2)
    shared = [each for each in arrivals if each.prefix is not None]
    one, other = (each for each in random.Random(0).sample(shared, 2))
    assert len(one.prompt) == one.prompt_tokens + PREFIX_TOKENS
    assert one.prompt[:PREFIX_TOKENS] == [one.prefix] * PREFIX_TOKENS
    assert (one.prompt[0] == other.prompt[0]) == (one.prefix == other.prefix)
    assert {each.at_s for each in burst(20, seed=1)} == {0.0}


@pytest.mark.parametrize("kept", ["result.json", "passes.jsonl"])
def test_a_folder_that_holds_another_run_is_refused_before_anything_starts(kept: str, tmp_path: Path) -> None:
    (tmp_path / kept).touch()
    with Terminal(tmp_path / "log") as terminal, pytest.raises(ConfigError, match=f"it already has a {kept}"):
        compare_dispatch(DispatchOptions(1, 0, 1, 1, 1.0, 1), tmp_path, terminal)
    assert not (tmp_path / kept).read_bytes()
