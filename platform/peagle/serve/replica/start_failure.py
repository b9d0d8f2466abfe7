"""Tells why an engine did not start, and keeps Serve from trying again in vain.

Serve's message of a failed start has the exception of the replica's process only, and vLLM's refers to the log. The log
is this process's own output, which the engine's processes share.
"""

import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from peagle.config import Deployment
from peagle.engine.start_causes import Cause, find_cause
from peagle.errors import StartupError

_LOG = logging.getLogger(__name__)
STANDARD_STREAMS, RAYS_COPIES = ("1", "2"), (".out", ".err")
# Time for Ray's thread to copy what an engine said last.
COPIED_S = 0.5
# For this time after a lasting failure, further starts fail at once: long enough for Serve's own retries, short enough
# for an operator who has mended the cause.
STANDS_S = 60.0
SEE_LOG = "The log of the replica's pod or machine has the details."


@contextmanager
def telling_why(deployment: Deployment) -> Iterator[None]:
    """Raise StartupError with the cause and its fix if the block, which starts an engine, fails."""
    starts, log = FailedStarts(deployment), StartLog()
    starts.raise_last()
    try:
        yield
    except Exception as error:
        _LOG.exception("The engine did not start.")
        time.sleep(COPIED_S)
        failure, lasting = start_failure(error, log.text())
        if lasting:
            starts.remember(failure)
        raise failure from None


class StartLog:
    """What this process and its children write to standard output and standard error from now on.

    They are files, or a pipe that a thread of Ray's copies to files `worker-*.out` and `worker-*.err`.
    """

    def __init__(self) -> None:
        self._ends: dict[Path, int] = {}
        for link in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                path, seen = link.readlink(), link.stat()
                is_standard = link.name in STANDARD_STREAMS or path.suffix in RAYS_COPIES
                if is_standard and stat.S_ISREG(seen.st_mode):
                    self._ends[path] = seen.st_size

    def text(self) -> str:
        parts = []
        for path, start in self._ends.items():
            with suppress(OSError), path.open("rb") as file:
                file.seek(start)
                parts.append(file.read().decode(errors="replace"))
        return "\n".join(parts)


def start_failure(error: Exception, log: str) -> tuple[StartupError, bool]:
    """Return the error that tells why the engine did not start, and whether every further try would fail as well."""
    cause = find_cause(f"{log}\n{type(error).__name__}: {error}") or Cause(str(error))
    return StartupError(f"The engine did not start: {cause.problem}", cause.fix or SEE_LOG), cause.lasting


class FailedStarts:
    """Lasting failures of replicas of this deployment, under one raylet, as files that later replicas read."""

    def __init__(self, deployment: Deployment, folder: Path | None = None) -> None:
        digest = hashlib.sha256(deployment.model_dump_json().encode()).hexdigest()[:16]
        # The parent is the node's raylet: a cluster that starts anew tries anew.
        folder = folder or Path(tempfile.gettempdir()) / f"peagle-starts-{os.getuid()}"
        self._file = folder / f"{os.getppid()}-{digest}"

    def raise_last(self) -> None:
        """Raise StartupError if an engine of this deployment failed here shortly ago, for a lasting reason."""
        with suppress(OSError, ValueError):
            if time.time() - self._file.stat().st_mtime < STANDS_S:
                problem, fix = self._file.read_text(encoding="utf-8").splitlines()
                raise StartupError(problem, fix)

    def remember(self, failure: StartupError) -> None:
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file.write_text(f"{failure.problem}\n{failure.fix}\n", encoding="utf-8")
