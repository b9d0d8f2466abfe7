"""`peagle chat` and `peagle status` against the served platform."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time

import pytest

from support.platforms.served import Served
from support.waiting import PATIENCE_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(900)]

PROMPT = "def read_lines(path):\n    with open(path) as file:"


def peagle(served: Served, command: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "peagle.cli", command, "--url", served.url, *arguments]
    return subprocess.run(line, input=stdin, capture_output=True, text=True, timeout=2 * PATIENCE_S)


def test_a_piped_conversation_puts_answers_on_stdout_and_figures_on_stderr(served: Served) -> None:
    done = peagle(served, "chat", "--temperature", "0", "--max-tokens", "40", stdin="import os\nimport sys\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert served.model in done.stderr
    figures = re.findall(r"(\d+) tokens · \d+ tokens/s · first token after \d+ ms · (.*)", done.stderr)
    assert [int(tokens) for tokens, _ in figures] == [40, 40]
    for _, rest in figures:
        length = re.search(r"acceptance length (\d+\.\d+)", rest)
        assert length is not None, done.stderr
        assert 1.0 <= float(length[1]) <= 8.0
    # K and its reason, on a separate line.
    assert len(re.findall(r"^K (?:=|by concurrent requests:) \d.* \(.+\)", done.stderr, re.MULTILINE)) == 2


def test_a_message_that_does_not_fit_is_dropped_and_the_conversation_goes_on(served: Served) -> None:
    done = peagle(served, "chat", "--temperature", "0", "--max-tokens", "8", stdin="x = 1; " * 2000 + "\nimport os\n")
    assert done.returncode == 1
    assert "context length" in done.stderr
    assert "Traceback" not in done.stderr
    assert "8 tokens" in done.stderr


def test_a_model_that_is_not_served_is_one_line(served: Served) -> None:
    done = peagle(served, "chat", "--model", "other")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("peagle: ")
    assert served.model in done.stderr


def generated(served: Served) -> int:
    return int(sum(replica["generation_tokens"] for replica in served.fleet()))


def test_ctrl_c_stops_the_answer_on_the_server_and_ctrl_d_leaves(served: Served) -> None:
    master, terminal = pty.openpty()
    line = [
        sys.executable,
        "-m",
        "peagle.cli",
        "chat",
        "--url",
        served.url,
        "--max-tokens",
        "900",
        "--temperature",
        "0",
    ]
    chat = subprocess.Popen(line, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True)
    os.close(terminal)
    before = generated(served)
    try:
        wait_for(master, "> ")
        os.write(master, b"import os\n")
        eventually(lambda: any(replica["running_requests"] for replica in served.fleet()))
        chat.send_signal(signal.SIGINT)
        wait_for(master, "stopped after")
        eventually(lambda: not any(replica["running_requests"] for replica in served.fleet()))
        assert generated(served) - before < 900
        os.write(master, b"\x04")
        assert chat.wait(timeout=PATIENCE_S) == 0
    finally:
        chat.kill()
        chat.wait()
        os.close(master)


def test_status_has_a_row_for_each_replica_with_its_depth(served: Served) -> None:
    peagle(served, "chat", "--max-tokens", "40", stdin=PROMPT + "\n")
    done = peagle(served, "status")
    assert done.returncode == 0, done.stderr
    rows = [
        [cell.strip() for cell in line.split("│")[1:-1]] for line in done.stdout.splitlines() if served.model in line
    ]
    assert len(rows) == served.replicas
    assert all(re.match(r"\d(\.\.\d)? / ", row[3]) for row in rows)
    assert any(float(row[4]) >= 1.0 for row in rows if row[4] != "-")


def test_status_as_json_is_the_servers_answer(served: Served) -> None:
    done = peagle(served, "status", "--json")
    assert done.returncode == 0, done.stderr
    (model,) = json.loads(done.stdout)["models"]
    assert model["name"] == served.model
    assert len(model["replicas"]) == served.replicas


def wait_for(terminal: int, text: str, timeout_s: float = PATIENCE_S) -> None:
    """Read the terminal until `text` appears."""
    seen, deadline = "", time.monotonic() + timeout_s
    while text not in seen:
        assert time.monotonic() < deadline, seen
        seen += os.read(terminal, 4096).decode(errors="replace")
