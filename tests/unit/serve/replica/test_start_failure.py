"""A replica whose engine does not start tells the line of its log that has the cause, and how to mend it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from peagle.config import load_deployment
from peagle.errors import StartupError
from peagle.serve.replica.start_failure import SEE_LOG, STANDS_S, FailedStarts, start_failure
from support.paths import DEPLOYMENTS

EMBEDDED = load_deployment(DEPLOYMENTS / "embedded.yaml")
CONSEQUENCE = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")


def test_the_cause_in_the_log_is_told_with_its_fix() -> None:
    log = "(EngineCore pid=9) fatal error: Python.h: No such file or directory\n"
    failure, lasting = start_failure(CONSEQUENCE, log)
    assert failure.problem == "The engine did not start: fatal error: Python.h: No such file or directory"
    assert "python3.11-dev" in failure.fix
    assert lasting


def test_an_engine_that_the_kernel_ended_may_be_tried_again() -> None:
    killed = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {'core': -9}")
    failure, lasting = start_failure(killed, "")
    assert "lack of memory" in failure.fix
    assert not lasting


def test_an_unknown_cause_refers_to_the_log() -> None:
    failure, lasting = start_failure(ValueError("no such thing"), "INFO nothing\n")
    assert (failure.problem, failure.fix) == ("The engine did not start: no such thing", SEE_LOG)
    assert not lasting


STARTS = """
import subprocess, sys
from pathlib import Path
from peagle.config import load_deployment
from peagle.serve.replica.start_failure import telling_why
print("ValueError: an earlier start", flush=True)
with telling_why(load_deployment(Path(sys.argv[1]))):
    subprocess.run([sys.executable, "-c", "raise ValueError('of the engine')"])
    raise RuntimeError("Engine core initialization failed. See root cause above.")
"""


def test_the_output_of_its_own_processes_is_read_from_the_start_on(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        command = [sys.executable, "-c", STARTS, str(DEPLOYMENTS / "embedded.yaml")]
        subprocess.run(command, stdout=log, stderr=log, check=False)
    last = (tmp_path / "log").read_text().splitlines()[-1]
    assert last == f"peagle.errors.StartupError: The engine did not start: of the engine. {SEE_LOG}"


COPIED = """
import os, sys
from pathlib import Path
from peagle.serve.replica.start_failure import StartLog
with open(sys.argv[1] + "/worker-1.err", "w") as copy, open(sys.argv[1] + "/notes.txt", "w") as other:
    print("before", file=copy, flush=True)
    log = StartLog()
    print("after", file=copy, flush=True)
    print("not a log", file=other, flush=True)
    print(log.text())
"""


def test_rays_copy_of_its_output_is_read_where_the_output_is_a_pipe(tmp_path: Path) -> None:
    command = [sys.executable, "-c", COPIED, str(tmp_path)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["after"]


def test_a_lasting_failure_stands_for_a_while_and_only_for_its_deployment(tmp_path: Path) -> None:
    starts = FailedStarts(EMBEDDED, tmp_path)
    starts.raise_last()
    starts.remember(StartupError("no headers", "Install them."))
    with pytest.raises(StartupError, match=r"no headers\. Install them\."):
        FailedStarts(EMBEDDED, tmp_path).raise_last()
    FailedStarts(EMBEDDED.model_copy(update={"name": "another"}), tmp_path).raise_last()
    (file,) = tmp_path.iterdir()
    then = file.stat().st_mtime - STANDS_S
    os.utime(file, (then, then))
    starts.raise_last()
