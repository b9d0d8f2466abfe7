"""An interrupted comparison resumes, and its result equals that of an uninterrupted one."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.bench.core.bench_settings import deployment_settings, refuse_other
from peagle.bench.core.journal import JOURNAL, Journal, unfinished
from peagle.bench.core.options import LoadOptions
from peagle.bench.core.session import run_job
from peagle.bench.engines import engine_session
from peagle.bench.engines.engine_session import EngineJob
from peagle.config import parse_deployment
from peagle.errors import ConfigError
from peagle.host.terminal import Terminal
from support.engines.generator_engine import OUTPUT_TOKENS, Generator, started

RAW: dict[str, Any] = {
    "name": "model",
    "target": {"source": "org/target"},
    "drafter": {"source": "org/head", "method": "p-eagle", "trained_depth": 8},
    "resources": {"accelerator": "cpu"},
}


def test_a_checkpoint_that_is_not_there_is_named_before_anything_starts(tmp_path: Path, prompts: Path) -> None:
    raw = RAW | {"target": {"source": str(tmp_path / "target")}}
    with pytest.raises(ConfigError, match=r"target\.source"):
        EngineJob.of(parse_deployment(raw, origin="x"), None, (), (7,), (1,), LoadOptions(prompts_from=prompts))


def test_a_head_that_is_not_speculated_with_need_not_be_there(tmp_path: Path, prompts: Path) -> None:
    raw = RAW | {"drafter": RAW["drafter"] | {"source": str(tmp_path / "none")}, "speculation": {"enabled": False}}
    file, load = parse_deployment(raw, origin="x"), LoadOptions(prompts_from=prompts)
    assert deployment_settings(file)["drafter"] is None
    assert [plan.name for plan in EngineJob.of(file, None, ("none",), (7,), (1,), load).plans] == ["none"]
    with pytest.raises(ConfigError, match=r"drafter\.source"):
        EngineJob.of(file, None, ("p-eagle",), (7,), (1,), load)


def job(prompts_from: Path, adaptive: bool = False, **load: Any) -> EngineJob:
    options = LoadOptions(prompts=5, tokens=OUTPUT_TOKENS, repeats=2, prompts_from=prompts_from, **load)
    return EngineJob.of(
        parse_deployment(RAW, origin="model.yaml"), None, (), (3, 7), (1, 2), options, adaptive=adaptive
    )


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"{number} 1"}) for number in range(1, 8)))
    return path


def run(job: EngineJob, folder: Path, monkeypatch: pytest.MonkeyPatch, ends_after: int | None = None) -> Any:
    """Run one start; return the class of its engines, which records their calls."""
    engines = started(ends_after)

    async def idle_cpu_ratio(seconds: float) -> float:
        return 0.0

    stand_in = SimpleNamespace(Engine=engines, idle_cpu_ratio=idle_cpu_ratio)
    monkeypatch.setitem(sys.modules, "peagle.bench.engines.vllm_engines", stand_in)
    folder.mkdir(exist_ok=True)
    asyncio.run(run_job(job, folder, Terminal(folder / "log")))
    return engines


def measured(folder: Path) -> list[str]:
    entries = [json.loads(line) for line in (folder / JOURNAL).read_text().splitlines()]
    return [json.dumps(entry["key"]) for entry in entries if entry["kind"] in ("pass", "take")]


def shape(value: Any) -> Any:
    """Return a result without its measured times."""
    timed = ("_per_s", "_ms", "ms_p", "ratio_to", "load", "sittings", "fastest", "best")
    if isinstance(value, dict):
        return {name: shape(below) for name, below in value.items() if not any(word in name for word in timed)}
    return [shape(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("ends_after", [1, 9, 12, 20])
def test_ctrl_c_keeps_what_is_done_and_the_next_start_makes_the_rest(
    ends_after: int, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, halved = tmp_path / "whole", tmp_path / "halved"
    run(job(prompts), whole, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        run(job(prompts), halved, monkeypatch, ends_after)
    kept = measured(halved)
    assert not (halved / "result.json").exists()
    assert (f"{len(kept)} of 18 measured passes are saved" in capsys.readouterr().out.replace("\n", " ")) == bool(kept)
    run(job(prompts), halved, monkeypatch)
    assert measured(halved)[: len(kept)] == kept
    assert measured(halved) == measured(whole), "each pass is made once, in the same order"
    one, other = (json.loads((folder / "result.json").read_text()) for folder in (whole, halved))
    assert shape(one) == shape(other)
    assert other["sittings"] == 2


def test_engines_start_anew_after_so_many_repeats(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job(prompts), tmp_path / "once", monkeypatch)
    run(job(prompts, restart_every=1), tmp_path / "restarted", monkeypatch)
    assert measured(tmp_path / "restarted") == measured(tmp_path / "once")
    once, restarted = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("once", "restarted"))
    assert (once["sittings"], restarted["sittings"]) == (1, 2)
    assert shape(once) == shape(restarted)


def test_a_finished_run_starts_no_engine_and_its_report_is_written_anew(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job(prompts), tmp_path / "out", monkeypatch)
    (tmp_path / "out" / "report.md").unlink()
    first = json.loads((tmp_path / "out" / "result.json").read_text())
    engines = run(job(prompts), tmp_path / "out", monkeypatch)
    assert engines.calls == []
    assert json.loads((tmp_path / "out" / "result.json").read_text()) == first
    assert (tmp_path / "out" / "report.md").exists()


def test_without_matplotlib_the_result_is_whole_and_what_brings_pictures_is_said(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "peagle.bench.core.plots", raising=False)
    run(job(prompts), tmp_path / "out", monkeypatch)
    assert (tmp_path / "out" / "result.json").exists()
    assert "Install peagle[bench]" in capsys.readouterr().out
    assert list((tmp_path / "out").glob("*.svg")) == []


def test_a_line_that_was_being_written_when_the_machine_stopped_is_made_again(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(job(prompts), folder, monkeypatch, ends_after=15)
    whole = (folder / JOURNAL).read_bytes()
    (folder / JOURNAL).write_bytes(whole[:-20])
    run(job(prompts), folder, monkeypatch)
    assert len(measured(folder)) == len(set(measured(folder))) == 18


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"repeats": 3}, r"--repeats: 2 there, 3 now"),
        ({"warmup": 0}, r"--warmup: 1 there, 0 now"),
        ({"eager": True}, r"--eager"),
    ],
)
def test_a_folder_with_other_settings_is_refused_and_the_setting_named(
    change: dict[str, Any], named: str, prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(job(prompts), tmp_path / "out", monkeypatch)
    load = {"repeats": 2} | change
    options = LoadOptions(prompts=5, tokens=OUTPUT_TOKENS, prompts_from=prompts, **load)
    other = EngineJob.of(parse_deployment(RAW, origin="model.yaml"), None, (), (3, 7), (1, 2), options)
    with pytest.raises(ConfigError, match=named):
        run(other, tmp_path / "out", monkeypatch)


def test_prompts_too_long_to_shift_between_are_said_before_anything_is_measured(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Generator, "encode", lambda _, text: [1] * len(text))
    options = LoadOptions(prompts=5, tokens=OUTPUT_TOKENS, repeats=2, prompts_from=prompts)
    job = EngineJob.of(parse_deployment(RAW, origin="model.yaml"), None, (), (3,), (1,), options, shifting=True)
    with pytest.raises(ConfigError, match=r"--shifting.*--tokens"):
        run(job, tmp_path / "out", monkeypatch)
    assert not measured(tmp_path / "out")


def test_more_at_once_than_there_are_prompts_is_refused(prompts: Path) -> None:
    options = LoadOptions(prompts=5, prompts_from=prompts)
    with pytest.raises(ConfigError, match="--prompts = 5: --concurrency needs 6 concurrent requests"):
        EngineJob.of(parse_deployment(RAW, origin="model.yaml"), None, (), (7,), (1, 6), options)


def test_settings_have_every_engine_argument_and_the_text_of_the_prompts(prompts: Path, tmp_path: Path) -> None:
    one = job(prompts).settings
    prompts.write_text(prompts.read_text().replace("7 1", "8 1"))
    with pytest.raises(ConfigError, match="--prompts-from"):
        refuse_other(job(prompts).settings, one, tmp_path)
    assert one["p-eagle.speculation.depth_max"] == 7
    assert {"machine.versions.torch", "machine.processor", "none.target"} <= set(one)


def test_weights_are_known_by_what_they_hold_and_not_by_where_they_lie(
    tmp_path: Path, prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_session, "check_checkpoints", lambda _: None)  # these are no checkpoints

    def settings(folder: str, content: bytes) -> dict[str, Any]:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "model.safetensors").write_bytes(content)
        raw = RAW | {"drafter": RAW["drafter"] | {"source": str(tmp_path / folder)}}
        options = LoadOptions(prompts_from=prompts)
        return EngineJob.of(parse_deployment(raw, origin="x"), None, (), (7,), (1,), options).settings

    assert settings("here", b"one") == settings("there", b"one")
    with pytest.raises(ConfigError, match=r"another p-eagle\.drafter"):
        refuse_other(settings("here", b"one"), settings("there", b"two"), tmp_path)


def test_the_newest_unfinished_run_of_these_settings_is_found(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "results"
    root.mkdir()
    settings = job(prompts).settings
    assert unfinished(root, settings) is None
    run(job(prompts), root / "3-finished", monkeypatch)
    for name, asked in (("1", settings), ("2", settings), ("4", job(prompts, warmup=0).settings)):
        (root / name).mkdir()
        with Journal.open(root / name, asked, EngineJob.entries):
            pass
    assert unfinished(root, settings) == root / "2"


def test_two_at_once_in_one_folder_and_a_foreign_result_are_refused(prompts: Path, tmp_path: Path) -> None:
    settings = job(prompts).settings
    with (
        Journal.open(tmp_path, settings, EngineJob.entries),
        pytest.raises(ConfigError, match="another run is writing it"),
        Journal.open(tmp_path, settings, EngineJob.entries),
    ):
        pass
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "result.json").write_text("{}")
    with (
        pytest.raises(ConfigError, match=r"already has a result\.json"),
        Journal.open(tmp_path / "other", settings, EngineJob.entries),
    ):
        pass


def test_a_damaged_line_is_named(prompts: Path, tmp_path: Path) -> None:
    settings = job(prompts).settings
    with Journal.open(tmp_path, settings, EngineJob.entries):
        pass
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"kind": "pass"}\n')
    with pytest.raises(ConfigError, match=r"passes\.jsonl:2"), Journal.open(tmp_path, settings, EngineJob.entries):
        pass


KILLED = """
import asyncio, signal, sys, types
from pathlib import Path
import test_engine_session_resume as test_resume
from support.engines import generator_engine
class Slow(generator_engine.started()):
    async def prepare(self, depth):
        await asyncio.sleep(0.03)
        await super().prepare(depth)
async def idle_cpu_ratio(seconds):
    return 0.0
# If SIGINT were ignored at start, as with `nohup`, it would not end.
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.modules["peagle.bench.engines.vllm_engines"] = types.SimpleNamespace(Engine=Slow, idle_cpu_ratio=idle_cpu_ratio)
folder = Path(sys.argv[2])
folder.mkdir(exist_ok=True)
asyncio.run(test_resume.run_job(test_resume.job(Path(sys.argv[1])), folder, test_resume.Terminal(folder / "log")))
"""


@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGINT])
def test_a_process_that_is_ended_half_way_goes_on(ends_by: signal.Signals, prompts: Path, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    paths = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    command = [sys.executable, "-c", KILLED, str(prompts), str(folder)]
    environment, nowhere = {**os.environ, "PYTHONPATH": paths}, subprocess.DEVNULL
    first = subprocess.Popen(command, env=environment, stdout=nowhere, stderr=nowhere)
    ends_s = time.monotonic() + 120
    while not (folder / JOURNAL).exists() or len(measured(folder)) < 5:
        assert time.monotonic() < ends_s
        assert first.poll() is None
        time.sleep(0.02)
    first.send_signal(ends_by)
    first.wait(timeout=60)
    kept = measured(folder)
    assert len(kept) < 18
    subprocess.run(command, env=environment, check=True, stdout=nowhere, timeout=120)
    assert measured(folder)[: len(kept)] == kept
    assert len(measured(folder)) == len(set(measured(folder))) == 18
