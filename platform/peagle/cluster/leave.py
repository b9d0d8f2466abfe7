"""Drains a worker pod before it ends: marks its Ray node as draining and waits until no Serve process is left on it.

A proxy outlives the replicas next to it, because it may relay answers of replicas elsewhere. Serve stops it half a
minute after the last replica has left, or once its last answer has ended.

Run by the pod's preStop hook. If Ray's head does not answer, requests cannot be redirected, so this ends with a
message, and the pod with it. If the head has answered before, this first waits for longer than a head takes to restart.
"""

import argparse
import logging
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import psutil  # type: ignore[import-untyped]

from peagle.cluster.drain.ray_nodes import Gcs, RayControl, RayUnreachable

logger = logging.getLogger(__name__)

POLL_S = 1.0
# An uninstalled release loses its head first: then nothing stops the replicas, and GPUs would stay in use.
HEAD_SILENT_S, HEAD_POLL_S = 120.0, 10.0
# Process titles of Serve's replicas and proxies.
SERVING = ("ray::ServeReplica:", "ray::ProxyActor")
# Set in each Ray container by KubeRay.
ADDRESS, POD = "RAY_ADDRESS", "RAY_CLOUD_INSTANCE_ID"


def serving_here() -> int:
    """Count the Serve replicas and proxies in this pod."""
    return sum(1 for process in psutil.process_iter() if _title(process).startswith(SERVING))


def _title(process: psutil.Process) -> str:
    try:
        return next(iter(process.cmdline()), "")
    except psutil.Error:
        return ""


def leave(
    control: RayControl,
    pod: str,
    timeout_s: float,
    serving: Callable[[], int] = serving_here,
    now_s: Callable[[], float] = time.time,
    sleep: Callable[[float], None] = time.sleep,
) -> bool:
    """Drain the Ray node in `pod` and wait; return whether its last replica and proxy have left within `timeout_s`.

    Raises:
        RayUnreachable: Ray's head never answered, or has not answered for `HEAD_SILENT_S`.
    """
    deadline_s = now_s() + timeout_s
    asked_s = heard_s = now_s()
    for node in control.nodes():
        if node.pod == pod:
            control.drain(node.id, round(1000 * deadline_s), f"pod {pod} ends")
    while left := serving():
        if now_s() >= deadline_s:
            logger.warning("%d replicas or proxies are still running after %.0f s", left, timeout_s)
            return False
        sleep(POLL_S)
        if now_s() - asked_s >= HEAD_POLL_S:
            asked_s = now_s()
            try:
                control.nodes()
                heard_s = now_s()
            except RayUnreachable:
                if now_s() - heard_s >= HEAD_SILENT_S:
                    raise
    return True


def main(arguments: Sequence[str] | None = None, environment: Mapping[str, str] = os.environ) -> int:
    """Drain as given by the command line and KubeRay's variables; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(prog="python -m peagle.cluster.leave", description=__doc__)
    parser.add_argument("--timeout-s", type=float, required=True, help="Longest wait, in seconds.")
    timeout_s: float = parser.parse_args(arguments).timeout_s
    missing = [name for name in (ADDRESS, POD) if name not in environment]
    if missing:
        print(f"{' and '.join(missing)} not set: this is not a KubeRay container", file=sys.stderr)
        return 2
    try:
        return 0 if leave(Gcs(environment[ADDRESS]), environment[POD], timeout_s) else 1
    except RayUnreachable as error:
        print(f"Ray's head does not answer; the pod ends without waiting: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
