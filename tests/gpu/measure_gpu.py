"""Checks this project's claims on one GPU: one JSON file and a short table, meant to take at most eight minutes.

    python tests/gpu/measure_gpu.py RESULT.json

It needs a Python with the engine, this project's `platform` and `tests` on PYTHONPATH, about 130 GiB of GPU memory, and
no network: the models are the embedded one and a shape with made-up weights. All engines start at once, because a start
is mostly compilation on the host. Meanwhile the embedded model is checked. Then each engine is measured alone, while
the others idle.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from peagle.bench.core import machine
from peagle.bench.core.records import NONE, PEAGLE
from support.engines.gpu_checks import CHECKS, drafting, empty_caches, why_no_gpu
from support.engines.gpu_lines import all_lines, shown, table

HERE = Path(__file__).parent
# In the order of measurement, with the share of the remaining time that each may take.
ENGINES = {PEAGLE: 0.65, NONE: 0.5, "eagle3 K=3": 0.5, "eagle3 K=7": 1.0}
STOP_S, READY_S = 20.0, 300.0
READY = ".ready"


class Measured:
    """An engine in a separate process, with caches that are empty at its start."""

    def __init__(self, name: str, folder: Path, passes: int) -> None:
        self.name = name
        self._out = folder / f"{name.replace(' ', '-').replace('=', '')}.json"
        self._log = self._out.with_suffix(".txt").open("w+")
        environment = {**os.environ, **empty_caches(self._out.with_suffix(""))}
        command = [sys.executable, str(HERE / "measured_engine.py"), name, str(self._out), "--passes", str(passes)]
        command += ["--ready", str(self._out.with_suffix(READY))]
        # Into a file: a pipe is not read while the checks run, and a full pipe would block the process.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=self._log, stderr=subprocess.STDOUT, env=environment, text=True
        )

    def wait_until_ready(self, until_s: float) -> bool:
        """Return whether it is ready by `until_s`."""
        while self._process.poll() is None and time.monotonic() < until_s:
            if self._out.with_suffix(READY).exists():
                return True
            time.sleep(0.2)
        return False

    def measure(self, budget_s: float) -> dict[str, Any]:
        """Return its results; after the budget it begins nothing new."""
        try:
            # If the process has died, it does not read its budget, which is not an error here.
            self._process.communicate(f"{budget_s}\n", timeout=budget_s + 4 * STOP_S)
        except subprocess.TimeoutExpired:
            return self.failed("it did not end in time")
        if not self._out.exists():
            return self.failed("it wrote nothing")
        found: dict[str, Any] = json.loads(self._out.read_text(encoding="utf-8"))
        return found

    def failed(self, why: str) -> dict[str, Any]:
        self._log.seek(0)
        return {"error": why, "log": self._log.read()[-4000:], "rows": []}

    def stop(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
        self._log.close()


def checked() -> dict[str, str | None]:
    """Run every check of the embedded model; return the problem of each, None if it passed."""
    results: dict[str, str | None] = {}
    with drafting() as (runner, truth):
        for check in CHECKS:
            try:
                check(runner, truth)
                results[check.__name__] = None
            except Exception as error:
                traceback.print_exc()
                results[check.__name__] = str(error).partition("\n")[0][:200] or repr(error)
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("result", type=Path)
    parser.add_argument("--budget-s", type=float, default=450.0, help="Begin no further pass after so long.")
    parser.add_argument("--passes", type=int, default=3)
    options = parser.parse_args()
    if (why := why_no_gpu()) is not None:
        print(f"Nothing can be shown here: {why}.", file=sys.stderr)
        return 2
    began_s = time.monotonic()
    # SIGTERM unwinds like Ctrl-C, so that the engines end too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    with tempfile.TemporaryDirectory(prefix="peagle-gpu-", ignore_cleanup_errors=True) as folder:
        engines = [Measured(name, Path(folder), options.passes) for name in ENGINES]
        try:
            checks = _attempted()
            checks_s = time.monotonic() - began_s
            ready = {engine.name: engine.wait_until_ready(began_s + READY_S) for engine in engines}
            ready_s = time.monotonic() - began_s
            found = {}
            for engine in engines:
                left_s = options.budget_s - (time.monotonic() - began_s)
                found[engine.name] = (
                    engine.measure(max(0.0, ENGINES[engine.name] * left_s))
                    if ready[engine.name]
                    else engine.failed("it did not start")
                )
        finally:
            for engine in engines:
                engine.stop()
    lines = all_lines(found, checks)
    times = {"checks_s": checks_s, "ready_s": ready_s, "all_s": time.monotonic() - began_s}
    result = {
        "machine": machine.identity(),
        "times": times,
        "lines": [line.plain() for line in lines],
        "checks": checks,
        "engines": found,
    }
    options.result.parent.mkdir(parents=True, exist_ok=True)
    options.result.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(table(lines))
    print(f"{times['all_s']:.0f} s, of which {ready_s:.0f} until all engines were ready. Written: {options.result}")
    return int(not shown(lines))


def _attempted() -> dict[str, str | None]:
    try:
        return checked()
    except Exception as error:
        traceback.print_exc()
        return {"the embedded model's engine": repr(error)[:400]}


if __name__ == "__main__":
    sys.exit(main())
