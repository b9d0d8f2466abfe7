"""A comparison of servers, from passes to report, with servers that answer at once."""

import asyncio
import json
import subprocess
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pytest
from rich.console import Console

from peagle.bench.core.difference import difference
from peagle.bench.core.journal import JOURNAL
from peagle.bench.core.options import LoadOptions
from peagle.bench.core.records import Run
from peagle.bench.core.session import run_job
from peagle.bench.servers.compared_servers import (
    CORES,
    SIDES,
    THREADS,
    Server,
    Side,
    environment,
    flags,
    side_deployment,
)
from peagle.bench.servers.completions import Completions, Reply
from peagle.bench.servers.overhead import SCRAPE_EVERY_S, Passes, Subject
from peagle.bench.servers.overhead_report import (
    busy_line,
    overhead_markdown,
    overhead_rows,
    overhead_table,
    verdict_line,
    verdict_rows,
)
from peagle.bench.servers.overhead_session import OverheadJob
from peagle.bench.servers.process_cpu import Reading
from peagle.bench.servers.served import CLIENT, select_texts
from peagle.config import Deployment, parse_deployment
from peagle.errors import ConfigError, StartupError
from peagle.host.terminal import Terminal

RAW: dict[str, Any] = {
    "name": "model",
    "target": {"source": "org/target"},
    "drafter": {"source": "org/head", "method": "p-eagle", "trained_depth": 8},
    "speculation": {"adaptive": True, "inter_token_s_max": 0.5},
    "replicas": {"min": 2, "max": 4},
    "resources": {"accelerator": "cpu", "cpus": 2},
    "engine": {"max_num_seqs": 32},
}


def deployment(**changes: Any) -> Deployment:
    return parse_deployment(RAW | changes, origin="model.yaml")


def run(tokens_per_s: float, ttft_s: float, gap_s: float, text: str = "a", **cpu_s: float) -> Run[Reply]:
    """One request of ten tokens in two outputs."""
    reply = Reply(text, 10, (ttft_s, ttft_s + gap_s))
    return Run(10 / tokens_per_s, traces=(reply,), cpu_s={"engine core": 0.01, CLIENT: 0.001, **cpu_s})


def runs() -> dict[tuple[Side, int], list[Run[Reply]]]:
    cells = {
        ("vllm", 1): [run(100, 0.020, 0.010), run(50, 0.040, 0.020)],
        ("peagle", 1): [run(96, 0.024, 0.0105, ingress=0.02), run(49, 0.044, 0.0205, text="b", ingress=0.04)],
        ("peagle-unmetered", 1): [run(96, 0.024, 0.0105), run(50, 0.044, 0.0205)],
        ("vllm", 8): [run(100, 0.020, 0.010)] * 2,
        ("peagle", 8): [run(90, 0.030, 0.013)] * 2,
        ("peagle-unmetered", 8): [run(100, 0.030, 0.013)] * 2,
    }
    return {(Side(name), level): cell for (name, level), cell in cells.items()}


def test_what_is_added_is_paired_by_repeat() -> None:
    plain, ours = overhead_rows(runs(), 7)[:2]
    assert "ratio_to_vllm" not in plain
    assert ours["ratio_to_vllm"] == {"median": pytest.approx(0.97), "low": 0.96, "high": 0.98}
    assert ours["ttft_added_ms"]["median"] == pytest.approx(4.0)
    assert ours["itl_added_ms"]["median"] == pytest.approx(0.5)
    assert ours["outputs_equal_to_vllm_ratio"] == 1.0


def test_cpu_time_is_of_the_server_and_by_process_and_the_client_s_apart() -> None:
    ours = overhead_rows(runs(), 7)[1]
    assert ours["cpu_s_per_1000_tokens"]["median"] == pytest.approx(4.0)
    assert ours["cpu_s_per_1000_tokens_by_process"] == {"ingress": pytest.approx(3.0), "engine core": 1.0}
    assert ours["client_cpu_s_per_1000_tokens"] == pytest.approx(0.1)


def test_promises_are_held_to_the_median_and_named_where_they_are_not_kept() -> None:
    rows = {(row["concurrency"], row["promise"]): row for row in verdict_rows(runs())}
    assert [promise for (level, promise), row in rows.items() if level == 1 and not row["kept"]] == []
    assert {promise for (level, promise), row in rows.items() if level == 8 and not row["kept"]} == {
        "throughput_ratio",
        "ttft_added_ms",
        "itl_added_ms",
        "metrics_ratio",
    }
    assert verdict_line(rows[1, "throughput_ratio"]).endswith("promised at least 0.95: kept")
    assert verdict_line(rows[8, "ttft_added_ms"]).startswith("8 at once: 10.0 (10.0 to 10.0) ms added")


def test_without_a_side_nothing_is_said_of_it() -> None:
    alone = {place: cell for place, cell in runs().items() if place[0].name == "peagle"}
    assert verdict_rows(alone) == []
    assert all("ratio_to_vllm" not in row for row in overhead_rows(alone, 7))


def test_the_table_fits_a_terminal_of_80_columns() -> None:
    console = Console(width=80)
    with console.capture() as shown:
        console.print(overhead_table(overhead_rows(runs(), 7)))
    assert "peagle-unmetered" in shown.get()
    assert "…" not in shown.get()


def test_a_machine_with_other_work_is_no_place_to_measure_on() -> None:
    assert busy_line({"load_before": 0.4, "cores": 2}) is None
    assert "load 8 on 2 cores" in str(busy_line({"load_before": 8, "cores": 2}))


@dataclass
class Stub:
    """A side's server and client in one, which answers after a moment and counts."""

    name: str
    salts: list[str] = field(default_factory=list)
    scrapes: int = 0
    told: list[bool] = field(default_factory=list)

    @property
    def subject(self) -> Any:
        return Subject(Side(self.name), self, self)  # type: ignore[arg-type]

    async def count(self, counting: bool) -> None:
        self.told.append(counting)

    async def ask(self, prompt: str, cache_salt: str) -> Reply:
        self.salts.append(cache_salt)
        await asyncio.sleep(0.01)
        return Reply(prompt.upper(), 2, (0.001, 0.002))

    async def scrape(self) -> None:
        self.scrapes += 1

    def cpu(self) -> Reading:
        assert self.told, "what makes the server this side is not its cost"
        return {(1, 0.0): ("engine core", float(len(self.salts)))}


async def test_a_pass_has_one_salt_of_its_own_and_what_its_processes_used(monkeypatch: pytest.MonkeyPatch) -> None:
    stub = Stub("peagle")
    used = SimpleNamespace(times=lambda: SimpleNamespace(user=len(stub.salts) / 2, system=0.0))
    monkeypatch.setattr("peagle.bench.servers.overhead.os", used)
    passes = Passes({stub.name: stub.subject})
    made = [await passes.make(Side(stub.name), ["x", "y"], 2) for _ in range(2)]
    assert len(set(stub.salts)) == 2
    assert [reply.text for reply in made[1].traces] == ["X", "Y"]
    assert made[1].cpu_s == {"engine core": 2.0, CLIENT: 1.0}


async def test_metrics_are_read_by_the_time_that_a_server_is_asked_and_only_where_there_are_any() -> None:
    metered, unmetered = Stub("peagle"), Stub("peagle-unmetered")
    passes = Passes({stub.name: stub.subject for stub in (metered, unmetered)})
    for _ in range(3):
        await passes.make(Side(metered.name), ["x"], 1)
        await passes.make(Side(unmetered.name), ["x"], 1)
    # Three passes together are shorter than the interval between scrapes.
    assert SCRAPE_EVERY_S > 1
    assert (metered.scrapes, unmetered.scrapes) == (1, 0)
    assert (metered.told, unmetered.told) == ([True] * 3, [False] * 3)


async def test_prompts_are_those_that_fit_each_once() -> None:
    async def count(text: str) -> tuple[int, int]:
        return len(text), 10

    chosen = await select_texts(["aaaa", "a" * 9, "aaaa", "bb"], 2, 5, count)
    assert (chosen.prompts, chosen.tokens, chosen.examined, chosen.too_long) == (("aaaa", "bb"), (4, 2), 4, 1)
    with pytest.raises(ConfigError, match="1 are too long"):
        await select_texts(["aaaa", "a" * 9], 2, 5, count)


def test_every_side_serves_one_replica_at_the_static_depth_on_the_same_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    served = side_deployment(deployment(), 3, eager=True)
    assert (served.replicas.min, served.replicas.max, served.speculation.adaptive) == (1, 1, False)
    assert served.engine == {"max_num_seqs": 32, "enforce_eager": True}
    monkeypatch.delenv(CORES, raising=False)
    monkeypatch.delenv(THREADS, raising=False)
    assert {CORES: "1,2", THREADS: "2"}.items() <= environment(served, [3, 1, 2]).items()
    own = served.model_copy(update={"environment": {CORES: "5"}})
    assert environment(own, [3, 1, 2])[CORES] == "5"


def test_engines_that_share_a_gpu_each_get_their_part() -> None:
    served = side_deployment(deployment(resources={"accelerator": "gpu"}), 3, eager=False)
    assert served.engine["gpu_memory_utilization"] == 0.3
    assert environment(served, [0]) == environment(served, [1]), "an engine on a GPU keeps to no cores"


def test_arguments_become_flags() -> None:
    given = {"dtype": "auto", "seed": 3, "enforce_eager": False, "log": True, "revision": None, "more": {"a": [1]}}
    assert flags(given) == ["--dtype", "auto", "--seed", "3", "--no-enforce-eager", "--log", "--more", '{"a": [1]}']


class FakeServer(Server):
    """A server without a process; `log` records its life cycle."""

    log_lines: list[str]

    @classmethod
    def start(cls, name: str, deployment: Deployment, folder: Path) -> Self:
        cls.log_lines.append(f"start {name}")
        return cls(name, subprocess.Popen(["true"]), name, folder)

    async def wait_until_ready(self) -> None:
        pass

    def cpu(self) -> Reading:
        return {(1, 0.0): ("engine core", 1.0)}

    def stop(self) -> None:
        super().stop()
        self.log_lines.append(f"stop {self.name}")


class FakeCompletions(Completions):
    """Answers at once; the `ends_at`-th request is interrupted. `counts` is each server's last counting setting."""

    asked: list[str]
    counted: list[tuple[str, bool | None]]
    counts: dict[str, bool]
    ends_at: int | None

    async def count(self, counting: bool) -> None:
        self.counts[self.url] = counting

    async def ask(self, prompt: str, cache_salt: str) -> Reply:
        self.asked.append(self.url)
        self.counted.append((self.url, self.counts.get(self.url)))
        if len(self.asked) == self.ends_at:
            raise KeyboardInterrupt
        await asyncio.sleep(0.001)
        return Reply(prompt, self.output_tokens, (0.001, 0.002))

    async def count_tokens(self, prompt: str) -> tuple[int, int]:
        return len(prompt), 100

    async def scrape(self) -> None:
        pass


def measure(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    ends_at: int | None = None,
    counted: list[tuple[str, bool | None]] | None = None,
    **load: Any,
) -> list[str]:
    """Run one start of a comparison; return its servers' logs. `counted` gets whether each request was counted."""
    prompts = folder.parent / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps({"prompt": f"prompt {number}"}) for number in range(5)))
    given: Mapping[str, Any] = {"prompts": 5, "tokens": 4, "repeats": 2, "prompts_from": prompts} | load
    job = OverheadJob.of(deployment(), SIDES, (1, 2), LoadOptions(**given))
    server = type("Fake", (FakeServer,), {"log_lines": []})
    client = type(
        "Fake",
        (FakeCompletions,),
        {"asked": [], "counted": [] if counted is None else counted, "counts": {}, "ends_at": ends_at},
    )
    for name, value in (("Server", server), ("Completions", client), ("IDLE_SECONDS", 0.01)):
        monkeypatch.setattr(f"peagle.bench.servers.overhead_session.{name}", value)
    monkeypatch.setattr("peagle.bench.servers.overhead_session.check_engine", lambda _: None)
    monkeypatch.setattr("peagle.host.processes.end_descendants", lambda _: 0)
    folder.mkdir(exist_ok=True)
    asyncio.run(run_job(job, folder, Terminal(folder / "log")))
    lines: list[str] = server.log_lines  # type: ignore[attr-defined]
    return lines


def keys(folder: Path) -> list[str]:
    entries = [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]
    return [json.dumps(entry["key"]) for entry in entries if entry["kind"] == "served"]


def test_a_comparison_stops_its_servers_and_writes_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    assert measure(out, monkeypatch) == ["start vllm", "start peagle", "stop vllm", "stop peagle"]
    result = json.loads((out / "result.json").read_text())
    assert [(row["method"], row["concurrency"]) for row in result["rows"]] == [(n, c) for c in (1, 2) for n in SIDES]
    assert all(row["outputs_equal_to_vllm_ratio"] == 1.0 for row in result["rows"] if row["method"] != "vllm")
    assert {path.name for path in out.glob("*.svg")} == {"throughput.svg", "cpu.svg"}
    text = (out / "report.md").read_text()
    assert "promised at least 0.95" in text
    widths = [line.count("|") if line.startswith("|") else 0 for line in text.splitlines()]
    assert all(one == other for one, other in pairwise(widths) if one and other)
    assert overhead_markdown(result, ["throughput.svg", "cpu.svg"]) == text, "the report is made of the JSON alone"
    assert {row["ratio"] for row in difference(result, result)["rows"]} == {1.0}


def test_with_and_without_metrics_one_server_is_asked_and_told_before_whether_it_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[tuple[str, bool | None]] = []
    measure(tmp_path / "out", monkeypatch, counted=counted)
    times = Counter(counted)
    assert set(times) == {("vllm", None), ("peagle", True), ("peagle", False)}
    assert len(set(times.values())) == 1


def test_ctrl_c_keeps_what_is_done_and_the_next_start_makes_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    measure(whole, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        measure(halved, monkeypatch, ends_at=40)
    kept = keys(halved)
    assert 0 < len(kept) < len(keys(whole))
    measure(halved, monkeypatch)
    assert keys(halved)[: len(kept)] == kept
    assert keys(halved) == keys(whole)
    assert measure(halved, monkeypatch) == [], "a finished run starts no server"


def test_servers_start_anew_after_so_many_repeats_and_take_turns_at_being_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    once, restarted = tmp_path / "once", tmp_path / "restarted"
    measure(once, monkeypatch)
    first, second = ["vllm", "peagle"], ["peagle", "vllm"]
    assert measure(restarted, monkeypatch, restart_every=1) == [
        f"{what} {name}" for order in (first, second) for what in ("start", "stop") for name in order
    ]
    assert keys(restarted) == keys(once)
    assert json.loads((restarted / "result.json").read_text())["sittings"] == 2
    assert "started 2 times" in (restarted / "report.md").read_text()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"names": ("vllm", "ollama")}, "vllm,peagle,peagle-unmetered"),
        ({"names": ()}, "it is empty"),
        ({"concurrencies": (1, 97)}, "97 concurrent requests"),
        ({"concurrencies": (1, 64)}, "engine.max_num_seqs of model is 32"),
    ],
)
def test_what_cannot_be_measured_is_said_before_anything_starts(change: dict[str, Any], named: str) -> None:
    options = {"names": SIDES, "concurrencies": (1,), "load": LoadOptions(prompts=96)} | change
    with pytest.raises(ConfigError, match=named):
        OverheadJob.of(deployment(), **options)


def test_a_server_that_ends_at_once_is_named_with_its_last_word(tmp_path: Path) -> None:
    log = tmp_path / "vllm.log"
    log.write_text("loading\nValueError: no such dtype\n")
    process = subprocess.Popen(["true"])
    process.wait()
    with pytest.raises(StartupError, match=r"vllm did not start \(no such dtype"):
        asyncio.run(Server("vllm", process, "http://127.0.0.1:1", log).wait_until_ready())


def test_a_checkpoint_that_is_not_there_is_named_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"target\.source"):
        OverheadJob.of(deployment(target={"source": str(tmp_path / "target")}), SIDES, (1,), LoadOptions())
