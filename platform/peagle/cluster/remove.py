"""First step of `helm uninstall`: deletes the release's RayServices while the operator is still running.

KubeRay holds a RayService by a finalizer until its Ray clusters are gone. Helm deletes an operator of the same release
early: the RayService would then never be deleted, and its pods would keep running.
"""

import argparse
import asyncio
import logging
import sys
import time
from collections.abc import Sequence

from peagle.cluster.drain.drain_actions import INSTANCE
from peagle.cluster.kube import KubeApi, connect
from peagle.errors import ClusterError, PeagleError

logger = logging.getLogger(__name__)

POLL_S = 1.0
# In the order in which they are awaited; owners come before their dependents.
RAY = "/apis/ray.io/v1/namespaces/{namespace}/{kind}"
OWNERS = ("rayservices", "rayclusters")


async def remove(api: KubeApi, release: str, timeout_s: float) -> list[str]:
    """Delete the release's RayServices and test pod; return the objects that remain after `timeout_s`.

    Raises ClusterError if the API refuses or does not answer.
    """
    query = {"labelSelector": f"{INSTANCE}={release}"}
    pods = f"/api/v1/namespaces/{api.namespace}/pods"
    test = {"labelSelector": f"{INSTANCE}={release},app.kubernetes.io/component=test"}
    services = RAY.format(namespace=api.namespace, kind="rayservices")
    for path, selector in ((services, query), (pods, test)):
        for item in (await api.list(path, f"list {path}", selector))[0]:
            name = item["metadata"]["name"]
            try:
                await api.delete(f"{path}/{name}", f"delete {name}")
            except ClusterError as error:
                if error.status != 404:
                    raise
    deadline_s = time.monotonic() + timeout_s
    while left := await _left(api, pods, query):
        if time.monotonic() >= deadline_s:
            break
        await asyncio.sleep(POLL_S)
    return left


async def _left(api: KubeApi, pods: str, query: dict[str, str]) -> list[str]:
    """Return the names of the remaining RayServices, RayClusters and Ray pods."""
    paths = [RAY.format(namespace=api.namespace, kind=kind) for kind in OWNERS]
    ray_pods = {"labelSelector": f"{query['labelSelector']},ray.io/cluster"}
    found = [*((path, query) for path in paths), (pods, ray_pods)]
    return [
        f"{path.rpartition('/')[2].removesuffix('s')} {item['metadata']['name']}"
        for path, selector in found
        for item in (await api.list(path, f"list {path}", selector))[0]
    ]


async def _run(release: str, namespace: str, timeout_s: float) -> int:
    async with connect(namespace=namespace) as api:
        left = await remove(api, release, timeout_s)
    if not left:
        logger.info("No RayService, RayCluster or Ray pod of release %s is left", release)
        return 0
    # Pods that are still finishing their last requests no longer need the operator.
    logger.warning("Still there after %.0f s: %s", timeout_s, ", ".join(left))
    return 0 if all(each.startswith("pod ") for each in left) else 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Remove the release given on the command line; return the exit status."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(prog="python -m peagle.cluster.remove", description=__doc__)
    parser.add_argument("--release", required=True)
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--timeout-s", type=float, required=True, help="Longest wait, in seconds.")
    given = parser.parse_args(arguments)
    try:
        return asyncio.run(_run(given.release, given.namespace, given.timeout_s))
    except PeagleError as error:
        print(f"{error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
