"""Trains the heads of several plan files in the processes that torchrun started. What is refused goes beside the plan.

torchrun --nproc-per-node 2 tests/support/engines/train_processes.py [--kill-at STEP] PLAN...
"""

import argparse
import os
import signal
from pathlib import Path

from peagle.drafter.train.compute import Compute, joined
from peagle.drafter.train.plan_file import load_training
from peagle.drafter.train.prepare import Job, prepare, train_job
from peagle.drafter.train.training import Progress
from peagle.errors import ConfigError


def train(plan: Path, compute: Compute, kill_at: int | None = None) -> list[float]:
    """Train what `plan` says, up to a kill after step `kill_at`; the loss of each step, where it is this process's."""
    job, losses = Job.of(load_training(plan)), []

    def report(progress: Progress) -> None:
        losses.append(progress.loss)
        if progress.step == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    material = compute.agree(lambda: prepare(job, compute))
    train_job(job, material, report, compute)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--kill-at", type=int, help="Step of the last plan after which the first process is killed.")
    parser.add_argument("plans", type=Path, nargs="+")
    arguments = parser.parse_args()
    with joined("cpu", "training.device") as here:
        for each in arguments.plans:
            try:
                found = train(each, here, arguments.kill_at if each == arguments.plans[-1] else None)
            except ConfigError as error:
                each.with_suffix(f".refused-{here.rank}").write_text(str(error))
                continue
            each.with_suffix(f".losses-{here.rank}").write_text(" ".join(map(str, found)))
