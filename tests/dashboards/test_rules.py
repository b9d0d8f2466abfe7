"""Recording rules and alerts: Prometheus loads them, and each alert fires exactly on its condition."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.alerts import ALERTS, RECORDINGS
from dashboards.boards import SPACE
from dashboards.generate import HERE
from dashboards.objectives import OBJECTIVES
from dashboards.rules import RUNBOOKS
from peagle.metrics import METRICS
from support.observe.prometheus_tools import program
from support.observe.promql_names import SCRAPED, aggregations, nodes, selectors, wrong_names

FILES = sorted((HERE / "generated").glob("*.yaml"))
RULES: list[dict[str, Any]] = [
    rule
    for path in FILES
    for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]
]
Series = Mapping[str, str]

M, R = 'model="m"', 'model="m",replica="r"'


@dataclass(frozen=True)
class Case:
    """Periodic samples in promtool's format that make an alert fire by `at`, and samples that do not."""

    alert: str
    fires: Series
    quiet: Series
    at: str = "50m"
    every: str = "1m"


def outcomes(outcome: str, others: int, these: int) -> Series:
    return {
        f'peagle_requests_total{{{M},outcome="ok"}}': f"0+{others}x60",
        f'peagle_requests_total{{{M},outcome="{outcome}"}}': f"0+{these}x60",
    }


def slow(name: str, *phases: tuple[float, int]) -> Series:
    """An objective's series with a share of slow values and a number of samples per phase."""
    objective = next(each for each in OBJECTIVES if each.name == name)
    every = 1000
    good, total, minutes = 0, 0, []
    for share, lasts in phases:
        step = round(every * (1 - share))
        minutes.append((f"{good}+{step}x{lasts - 1}", f"{total}+{every}x{lasts - 1}"))
        good, total = good + step * lasts, total + every * lasts
    return {
        f'{objective.histogram}_bucket{{{M},le="{float(objective.within_s)}"}}': " ".join(each for each, _ in minutes),
        f"{objective.histogram}_count{{{M}}}": " ".join(each for _, each in minutes),
    }


def first_position(before: int, now: int, drafts: int = 100) -> Series:
    """Accepted drafts at position 1: of 100 drafts per minute for six hours, then of `drafts` in the next hour."""
    drafted = f"0+100x360 36000+{drafts}x60"
    return {
        f'peagle_replica_position_draft_tokens_total{{{R},position="1"}}': drafted,
        f'peagle_replica_position_accepted_tokens_total{{{R},position="1"}}': f"0+{before}x360 {before * 360}+{now}x60",
        f"peagle_replica_drafts_total{{{R}}}": drafted,
    }


def rolled_out(now: int) -> Series:
    """Five hours of one replica, an hour without drafts, then a new replica with this many of 100 drafts accepted."""
    old, new = 'model="m",replica="old",position="1"', 'model="m",replica="r",position="1"'
    return {
        f"peagle_replica_position_draft_tokens_total{{{old}}}": "0+100x300 30000x60",
        f"peagle_replica_position_accepted_tokens_total{{{old}}}": "0+70x300 21000x60",
        f"peagle_replica_position_draft_tokens_total{{{new}}}": "_x360 0+100x60",
        f"peagle_replica_position_accepted_tokens_total{{{new}}}": f"_x360 0+{now}x60",
        f"peagle_replica_drafts_total{{{R}}}": "_x360 0+100x60",
    }


def verified(share: float) -> Series:
    return {
        f"peagle_replica_requested_draft_tokens_total{{{R}}}": "0+1000x60",
        f"peagle_replica_draft_tokens_total{{{R}}}": f"0+{1000 * share:.0f}x60",
        f"peagle_replica_drafts_total{{{R}}}": "0+200x60",
    }


def graphs(without: int, steps: int = 1000) -> Series:
    """Number of decode steps per minute with a piecewise graph."""
    return {
        f'peagle_replica_graph_steps_total{{{R},graph="full"}}': f"0+{steps - without}x60",
        f'peagle_replica_graph_steps_total{{{R},graph="piecewise"}}': f"0+{without}x60",
        f'peagle_replica_graph_steps_total{{{R},graph="none"}}': "0x60",
    }


def queue(open_requests: str) -> Series:
    """Of the requests open, 32 run."""
    return {
        f'peagle_requests_open{{{M},ingress="i"}}': open_requests,
        f"peagle_replica_running_requests{{{R}}}": "32x60",
    }


def moved(changes: str, running: str, cause: str = "gain") -> Series:
    return {
        f'peagle_replica_depth_changes_total{{{R},cause="{cause}"}}': changes,
        f"peagle_replica_running_requests{{{R}}}": running,
    }


def held_by_guard(mode: str) -> Series:
    """The guard's fallback as often as `mode` says."""
    return {
        f'peagle_replica_depth_mode{{{R},mode="fallback"}}': mode,
        f"peagle_replica_running_requests{{{R}}}": "4x60",
    }


def versions(planned: str, applied: str) -> Series:
    return {
        f"peagle_replica_plan_version{{{R}}}": planned,
        f"peagle_replica_depth_version{{{R}}}": applied,
    }


def goodput(ratio: float) -> Series:
    return {f"peagle_replica_goodput_ratio{{{R}}}": f"{ratio}x60"}


def gain(high: float, depth: int) -> Series:
    return {
        f"peagle_replica_speedup_high_ratio{{{R}}}": f"{high}x60",
        f"peagle_replica_depth_planned{{{R}}}": f"{depth}x60",
    }


def dispatched(reason: str) -> Series:
    """Three of four decisions for a reason."""
    decisions = f'peagle_dispatch_decisions_total{{{M},ingress="i"'
    return {f'{decisions},reason="{reason}"}}': "0+75x60", f'{decisions},reason="prefix"}}': "0+25x60"}


def tokens_every(a_s: float, b_s: float, r_s: float, number: int = 600) -> Series:
    """Three replicas with these seconds between tokens; the last generates `number` tokens per minute."""
    series = {}
    for replica, seconds, tokens in (("a", a_s, 600), ("b", b_s, 600), ("r", r_s, number)):
        name = f'{{{M},replica="{replica}"}}'
        series[f"peagle_replica_itl_seconds_sum{name}"] = f"0+{seconds * tokens:g}x60"
        series[f"peagle_replica_itl_seconds_count{name}"] = f"0+{tokens}x60"
    return series


def restarts(values: str, container: str = "ray-worker") -> Series:
    return {f'kube_pod_container_status_restarts_total{{pod="p",container="{container}"}}': values}


DCGM_XID = 'DCGM_FI_DEV_XID_ERRORS{gpu="0",Hostname="n"}'
ANSWERING = f"peagle_replicas_answering{{{M}}}"
CASES = (
    Case("PeagleNoReplica", {ANSWERING: "1x20 0x40"}, {ANSWERING: "2x20 1x40"}),
    # Every twenty minutes; and a roll-out of four.
    Case("PeagleReplicaFlaps", {ANSWERING: " ".join(["1x14 0x4"] * 8)}, {ANSWERING: "4x60 3 4 3 4 3 4 3 4x60"}, "140m"),
    Case("PeagleReplicaFlaps", {ANSWERING: " ".join(["2 1"] * 30)}, {ANSWERING: "2x20 1 2 3 2x40"}),
    Case(
        "PeagleEngineStalls",
        {f"peagle_replica_engine_stalls_total{{{R}}}": "0x45 1x15"},
        {f"peagle_replica_engine_stalls_total{{{R}}}": "3x60"},
    ),
    Case(
        "PeagleReplicaDoesNotStart",
        {f'peagle_replicas{{{M},state="starting"}}': "1x60"},
        {
            f'peagle_replicas{{{M},state="starting"}}': "1x25 _x10 1x25",
            f'peagle_replicas{{{M},state="running"}}': "1x60",
        },
    ),
    Case(
        "PeagleScrapeLost",
        {ANSWERING: "1x20"},
        # The head's pod is replaced, and another one is scraped.
        {
            f'peagle_replicas_answering{{{M},instance="old"}}': "1x20",
            f'peagle_replicas_answering{{{M},instance="new"}}': "_x20 1x40",
        },
    ),
    # The last model's series are gone for an hour.
    Case("PeagleScrapeLost", {ANSWERING: "1x20"}, {ANSWERING: "1x120"}, "100m"),
    Case("PeagleScrapeGaps", {ANSWERING: "1x60 " + "1 _ " * 30}, {ANSWERING: "1x60 1x8 _ 1x50"}, "110m"),
    Case("PeagleRequestsFail", outcomes("failed", 90, 10), outcomes("failed", 1000, 1)),
    Case("PeagleRequestsShed", outcomes("shed", 90, 10), outcomes("shed", 990, 10)),
    Case("PeagleQueueGrows", queue("32+2x60"), queue("46x60")),
    # It fills to its bound and stays there; a burst is worked off.
    Case("PeagleQueueGrows", queue("32x5 300x55"), queue("32x30 300x5 46x25")),
    Case(
        "PeagleCacheFull",
        {f"peagle_replica_kv_usage_ratio{{{R}}}": "0.99x60"},
        {f"peagle_replica_kv_usage_ratio{{{R}}}": "0.8x40 0.99x10 0.8x10"},
    ),
    Case("PeagleDispatchIsBlind", dispatched("least-in-flight"), dispatched("soonest")),
    Case("PeagleDispatchIsBlind", dispatched("wait-least-in-flight"), dispatched("home")),
    Case("PeagleReplicaSlow", tokens_every(a_s=0.02, b_s=0.02, r_s=0.06), tokens_every(a_s=0.02, b_s=0.03, r_s=0.04)),
    # Two replicas are no measure of each other, and one that gave a few tokens has no speed.
    Case(
        "PeagleReplicaSlow",
        tokens_every(a_s=0.02, b_s=0.03, r_s=0.07),
        tokens_every(a_s=0.02, b_s=0.02, r_s=1.0, number=20),
    ),
    Case("PeagleRayRestarts", restarts("0x40 1x20"), restarts("3x60")),
    Case("PeagleRayRestarts", restarts("0x40 1x20", "ray-head"), restarts("0x40 1x20", "autoscaler")),
    Case("PeagleGpuErrors", {DCGM_XID: "0x45 79x15"}, {DCGM_XID: "79x20 0x40"}),
    Case("PeagleAcceptanceCollapses", first_position(70, 20), first_position(70, 50), "385m"),
    Case("PeagleAcceptanceCollapses", rolled_out(20), rolled_out(50), "385m"),
    # Where the rule answers with K = 0 its trials still draft; three drafts a minute prove nothing.
    Case("PeagleAcceptanceCollapses", first_position(70, 2, 8), first_position(70, 0, 3), "385m"),
    Case("PeagleDepthIsNotApplied", verified(0.5), verified(0.9)),
    Case("PeagleStepsWithoutGraph", graphs(200), graphs(50)),
    Case("PeagleStepsWithoutGraph", graphs(200), graphs(20, steps=50)),
    Case("PeaglePlanIsNotApplied", versions("4+1x60", "4x60"), versions("4+1x60", "3+1x60")),
    Case("PeagleDepthOscillates", moved("0+2x60", "8x60"), moved("0+2x60", "2 32 " * 30)),
    # What a new load makes it learn; and trials, which are no changes.
    Case("PeagleDepthOscillates", moved("0+2x60", "8x60"), moved("0x15 0+6x7 42x40", "8x60")),
    Case("PeagleDepthOscillates", moved("0+2x60", "8x60", "probe_adopted"), moved("0+2x60", "8x60", "probe")),
    Case(
        "PeaglePlanStale",
        {f"peagle_replica_plan_age_seconds{{{R}}}": "0+60x60"},
        {f"peagle_replica_plan_age_seconds{{{R}}}": "0.4x60"},
    ),
    Case("PeagleGoodputUnderPrediction", goodput(0.8), goodput(0.95)),
    Case("PeagleGoodputUnderPrediction", held_by_guard("1x25 _x6 1x30"), held_by_guard("1x10 _x20 1x3 _x26")),
    Case(
        "PeagleDepthFallsBack",
        {f"peagle_replica_depth_fallbacks_total{{{R}}}": "0x10 1x10 2x10 4x30"},
        {f"peagle_replica_depth_fallbacks_total{{{R}}}": "0x10 1x50"},
    ),
    Case("PeagleSpeculationCosts", gain(0.97, 3), gain(1.02, 3)),
    # A K of 0 costs nothing, whatever it is compared with.
    Case("PeagleSpeculationCosts", gain(0.9, 7), gain(0.9, 0)),
    # An hour after six good ones, and ten good minutes after that; then six hours of less, and forty good minutes.
    Case(
        "PeagleTtftBudgetBurnsFast",
        slow("ttft", (0, 360), (0.8, 70)),
        slow("ttft", (0, 350), (0.8, 60), (0, 20)),
        "429m",
    ),
    Case("PeagleTtftBudgetBurnsFast", slow("ttft", (0.4, 420)), slow("ttft", (0.4, 370), (0, 50)), "419m"),
    Case(
        "PeagleItlBudgetBurnsFast", slow("itl", (0, 360), (0.2, 70)), slow("itl", (0, 350), (0.2, 60), (0, 20)), "429m"
    ),
    Case("PeagleItlBudgetBurnsFast", slow("itl", (0.08, 420)), slow("itl", (0.08, 370), (0, 50)), "419m"),
    # A day of three times what the budget allows for, and three days of a little too much, then seven good hours.
    Case("PeagleTtftBudgetBurnsSlowly", slow("ttft", (0.2, 400)), slow("ttft", (0.04, 400)), "1596m", "4m"),
    Case("PeagleTtftBudgetBurnsSlowly", slow("ttft", (0.08, 1100)), slow("ttft", (0.08, 995), (0, 105)), "4396m", "4m"),
    Case("PeagleItlBudgetBurnsSlowly", slow("itl", (0.04, 400)), slow("itl", (0.005, 400)), "1596m", "4m"),
)


def run_promtool(*arguments: str) -> None:
    done = subprocess.run([program("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def series_of(recorded: list[dict[str, Any]]) -> dict[str, frozenset[str]]:
    """The labels of recorded series: those that their expression groups by."""
    return {
        rule["record"]: frozenset().union(*(labels for labels, _ in aggregations(nodes(rule["expr"])))) | SCRAPED
        for rule in recorded
    }


RECORDED = series_of([rule for rule in RULES if "record" in rule])


def test_prometheus_loads_the_rules() -> None:
    run_promtool("check", "rules", *map(str, FILES))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.get("record") or rule["alert"])
def test_a_rule_names_only_what_is_exported_or_recorded(rule: dict[str, Any]) -> None:
    assert wrong_names(rule["expr"], RECORDED) == []


def test_what_is_recorded_is_used_or_shown() -> None:
    named = "\n".join(alert.expr for alert in ALERTS)
    unused = {rule.record for rule in RECORDINGS if rule.record not in named}
    assert unused == {"model:peagle_generation_tokens:rate5m"}


def test_an_objective_s_bound_is_one_of_its_histogram_s_buckets() -> None:
    buckets = {metric.name: metric.buckets for metric in METRICS}
    for objective in OBJECTIVES:
        assert objective.within_s in buckets[objective.histogram]


def test_every_alert_tells_what_to_do_and_has_a_case() -> None:
    assert {case.alert for case in CASES} == {alert.name for alert in ALERTS}
    for alert in ALERTS:
        assert alert.severity in ("critical", "warning")
        assert len(alert.runbook.split(". ")) >= 2, alert.name
        assert alert.summary.endswith(".")


def test_every_alert_leads_to_its_section_of_the_runbooks_and_each_section_is_an_alert_s() -> None:
    page = HERE / "runbooks.md"
    sections = dict(part.split("\n", 1) for part in page.read_text(encoding="utf-8").split("\n## ")[1:])
    assert list(sections) == [alert.name for alert in ALERTS]
    for name, text in sections.items():
        lines = text.strip().splitlines()
        assert 3 <= len(lines) <= 6, name
        assert [line.split(":")[0] for line in lines if line.startswith("- ")] == ["- Means", "- Look", "- Do"], name
    urls = {rule["alert"]: rule["annotations"]["runbook_url"] for rule in RULES if "alert" in rule}
    assert urls == {name: f"dashboards/runbooks.md#{name.lower()}" for name in sections}
    assert page.samefile(HERE.parent / RUNBOOKS)


def rests_on(alert: str) -> list[dict[str, Any]]:
    """The rule of an alert behind those that record what it names."""
    needed = [rule for rule in RULES if rule.get("alert") == alert]
    for rule in needed:
        names = {name for name, _ in selectors(nodes(rule["expr"]))}
        needed += [other for other in RULES if other.get("record") in names and other not in needed]
    return needed[::-1]


@pytest.mark.parametrize("fires", [True, False], ids=["fires", "quiet"])
@pytest.mark.parametrize("alert", [alert.name for alert in ALERTS])
def test_an_alert_fires_on_what_it_is_for_and_on_nothing_less(alert: str, fires: bool, tmp_path: Path) -> None:
    """By the rules that it rests on alone: promtool takes ten times as long to evaluate all at every step."""
    rules, path = tmp_path / "rules.yaml", tmp_path / "test.yaml"
    rules.write_text(yaml.safe_dump({"groups": [{"name": "tested", "rules": rests_on(alert)}]}), encoding="utf-8")
    cases = [case for case in CASES if case.alert == alert]
    for every in {case.every for case in cases}:
        tests = [promtool_test(case, fires) for case in cases if case.every == every]
        told = {"rule_files": [str(rules)], "evaluation_interval": every, "tests": tests}
        path.write_text(yaml.safe_dump(told), encoding="utf-8")
        run_promtool("test", "rules", str(path))


def test_all_namespaces_take_in_series_that_have_none(tmp_path: Path) -> None:
    """Without Kubernetes nothing has a namespace; `.*` is what a board puts in for all of them."""
    one, none = 'ray_node_cpu_utilization{ip="a",namespace="x"}', 'ray_node_cpu_utilization{ip="b"}'
    asked = {
        chosen: f"count(ray_node_cpu_utilization{{{SPACE.replace('$namespace', chosen)}}})" for chosen in (".*", "x")
    }
    counts = [
        {"expr": expr, "eval_time": "5m", "exp_samples": [{"labels": "{}", "value": value}]}
        for expr, value in zip(asked.values(), (2, 1), strict=True)
    ]
    series = [{"series": name, "values": "1x10"} for name in (one, none)]
    tests = [{"interval": "1m", "input_series": series, "promql_expr_test": counts}]
    path = tmp_path / "test.yaml"
    path.write_text(yaml.safe_dump({"rule_files": [], "evaluation_interval": "1m", "tests": tests}), encoding="utf-8")
    run_promtool("test", "rules", str(path))


def promtool_test(case: Case, fires: bool) -> dict[str, Any]:
    series = case.fires if fires else case.quiet
    expected = [{"labels": "{}", "value": 1}] if fires else []
    firing = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}})'
    return {
        "interval": case.every,
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [{"expr": firing, "eval_time": case.at, "exp_samples": expected}],
    }
