import subprocess
import sys
from pathlib import Path

import pytest

from peagle.errors import StartupError
from peagle.host.terminal import Terminal, log_path

SCRIPT = """
import subprocess, sys
from pathlib import Path
from peagle.host.terminal import Terminal
with Terminal(Path(sys.argv[1])) as terminal:
    print("library line")
    subprocess.run(["echo", "child line"])
    with terminal.stage("Load [bold]") as stage:
        stage.detail("1 of 2")
    try:
        with terminal.stage("Break"):
            raise ValueError
    except ValueError:
        pass
print("after")
"""


def test_our_lines_reach_the_terminal_and_all_others_the_log(tmp_path: Path) -> None:
    log = tmp_path / "state" / "serve.log"
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(log)], capture_output=True, text=True, check=True, timeout=60
    )
    lines = result.stdout.splitlines()
    assert lines[0] == "… Load [bold]"
    assert lines[1].startswith("✓ Load [bold]: 1 of 2")
    assert lines[3].startswith("✗ Break")
    assert lines[4:] == ["after"]
    assert log.read_text(encoding="utf-8").splitlines() == ["library line", "child line"]


GROWING = """
import subprocess, sys, time
from pathlib import Path
from peagle.host.terminal import Terminal
with Terminal(Path(sys.argv[1]), log_bytes_max=20_000, look_s=0.01):
    child = subprocess.Popen(["sh", "-c", "for i in $(seq 300); do echo child $i; sleep 0.001; done"])
    for number in range(2000):
        print("line", number, "x" * 50, flush=True)
        time.sleep(0.0005)
    child.wait()
    time.sleep(0.5)
    print("last", flush=True)
"""


def test_a_log_stays_bounded_and_keeps_what_was_written_last(tmp_path: Path) -> None:
    log = tmp_path / "serve.log"
    log.with_name("serve.log.1").write_text("of an earlier start")
    subprocess.run([sys.executable, "-c", GROWING, str(log)], check=True, timeout=60)
    assert {path.name for path in tmp_path.iterdir()} == {"serve.log", "serve.log.1"}
    assert all(path.stat().st_size < 60_000 for path in tmp_path.iterdir())  # of 120,000 written
    text = log.read_text(encoding="utf-8")
    assert text.endswith("last\n")
    assert "\0" not in text
    assert "line" in log.with_name("serve.log.1").read_text(encoding="utf-8")


def test_a_log_that_cannot_be_written_is_named_with_what_moves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "peagle").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(StartupError, match=r"the log .*serve-8000.log cannot be written .*Set XDG_STATE_HOME"):
        Terminal(log_path(8000)).__enter__()


def test_a_user_without_a_home_folder_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(StartupError, match="no home folder"):
        log_path(8000)
