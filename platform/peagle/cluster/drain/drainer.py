"""Watches nodes and Ray pods of one release, and applies the actions of `peagle.cluster.drain.drain_actions`."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence

from peagle.cluster.drain.drain_actions import (
    INSTANCE,
    NODE_TYPE,
    Action,
    Drain,
    DrainPolicy,
    KubeNode,
    RayNode,
    RayPod,
    Release,
    Replace,
    Resize,
    Stay,
    decide,
    leaving_pods,
    parse_node,
    parse_pod,
    parse_ray_cluster,
    parse_ray_service,
    replacements,
    resizes,
)
from peagle.cluster.drain.ray_nodes import GCS_PORT, RayControl, RayUnreachable
from peagle.cluster.kube import Json, KubeApi
from peagle.cluster.watch import Collection, Watch
from peagle.errors import ClusterError

logger = logging.getLogger(__name__)

TICK_S = 1.0


class Drainer:
    """Drains leaving nodes until cancelled. `connect` connects to the Ray cluster with its GCS at an address."""

    def __init__(
        self,
        api: KubeApi,
        release: str,
        policy: DrainPolicy,
        connect: Callable[[str], RayControl],
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._api, self._policy, self._connect, self._now_s = api, policy, connect, now_s
        self._changed = asyncio.Event()
        pods = f"/api/v1/namespaces/{api.namespace}/pods"
        labels = {"labelSelector": f"{INSTANCE}={release},{NODE_TYPE}"}
        of_release = {"labelSelector": f"{INSTANCE}={release}"}
        where, rays = f"in {api.namespace}", f"/apis/ray.io/v1/namespaces/{api.namespace}"
        clusters = Collection(f"rayclusters {where}", f"{rays}/rayclusters", parse_ray_cluster, of_release)
        services = Collection(f"rayservices {where}", f"{rays}/rayservices", parse_ray_service, of_release)
        nodes: Collection[KubeNode] = Collection("nodes", "/api/v1/nodes", parse_node, {})
        self._nodes = Watch(api, nodes, self._changed)
        self._pods = Watch(api, Collection(f"pods {where}", pods, parse_pod, labels), self._changed)
        self._clusters = Watch(api, clusters, self._changed)
        self._services = Watch(api, services, self._changed)
        self._controls: dict[str, tuple[str, RayControl]] = {}
        self._said: set[str] = set()

    async def run(self) -> None:
        """Run until cancelled.

        Raises ClusterError if nodes, pods, Ray clusters or RayServices cannot be listed at the start; later failures
        are retried.
        """
        watches = (self._nodes, self._pods, self._clusters, self._services)
        for watch in watches:
            await watch.load()
        logger.info("Watching %d nodes and %d Ray pods", len(self._nodes.objects), len(self._pods.objects))
        async with asyncio.TaskGroup() as tasks:
            for watch in watches:
                tasks.create_task(watch.run())
            tasks.create_task(self._work())

    async def _work(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            # While a pod leaves, Ray's state changes too, without an event here.
            while await self._step():  # noqa: ASYNC110
                await asyncio.sleep(TICK_S)

    async def _step(self) -> bool:
        """Read, decide and act once; return whether anything is leaving."""
        nodes = {node.name: node for node in self._nodes.objects.values()}
        pods = tuple(self._pods.objects.values())
        leaving = leaving_pods(nodes, pods, self._policy)
        clusters = tuple(self._clusters.objects.values())
        for resize in resizes(self._services.objects.values(), clusters):
            await self._act(resize)
        for replace in replacements(nodes, pods, clusters, self._policy):
            await self._act(replace)
        if not leaving:
            self._said.clear()
            return False
        ray_nodes = await self._ray_nodes({pod.ray_cluster for pod in leaving}, pods)
        for action in decide(nodes, pods, ray_nodes, round(1000 * self._now_s()), self._policy):
            await self._act(action)
        return not all(pod.is_head for pod in leaving)

    async def _ray_nodes(self, clusters: set[str], pods: Sequence[RayPod]) -> Mapping[str, Sequence[RayNode]]:
        """Return the nodes of each Ray cluster from its head, without clusters that do not answer."""
        heads = {pod.ray_cluster: pod.ip for pod in pods if pod.is_head and pod.ip and not pod.is_ending}
        answers: dict[str, Sequence[RayNode]] = {}
        for cluster in sorted(clusters):
            address = gcs_address(heads.get(cluster))
            if address is None:
                self._say(f"Ray cluster {cluster} has no head now; its workers are left alone")
                continue
            if self._controls.get(cluster, ("", None))[0] != address:
                self._controls[cluster] = (address, self._connect(address))
            try:
                answers[cluster] = await asyncio.to_thread(self._controls[cluster][1].nodes)
            except RayUnreachable as error:
                self._say(f"Ray cluster {cluster} does not answer, its workers are left alone: {error}")
        return answers

    async def _act(self, action: Action) -> None:
        """Apply one action. A failure is only logged: the next step decides again."""
        try:
            match action:
                case Drain(pod, ray_node, deadline_ms, reason):
                    control = self._controls[pod.ray_cluster][1]
                    await asyncio.to_thread(control.drain, ray_node, deadline_ms, reason)
                    logger.info(
                        "%s: %s drains, for %.0f s at most", reason, pod.name, deadline_ms / 1e3 - self._now_s()
                    )
                case Replace(cluster, group, _, deleted, new):
                    await self._patch(action, {"scaleStrategy": {"workersToDelete": list(deleted)}})
                    logger.info("%s: KubeRay replaces pods of group %s: %s", cluster, group, ", ".join(new))
                case Resize(cluster, group, _, size):
                    bounds = {"minReplicas": size.least, "maxReplicas": size.most}
                    await self._patch(action, {"replicas": size.replicas, **bounds})
                    logger.info(
                        "%s: group %s is resized to %d pods, as in its RayService", cluster, group, size.replicas
                    )
                case Release(pod, reason):
                    await self._evict(pod)
                    logger.info("%s: %s is evicted", reason, pod.name)
                case Stay(pod, reason):
                    self._say(
                        f"{reason}: the Ray head {pod.name} stays there; delete it when an interruption is acceptable"
                    )
        except (ClusterError, RayUnreachable) as error:
            self._say(str(error))

    async def _patch(self, action: Replace | Resize, fields: Json) -> None:
        group = f"/spec/workerGroupSpecs/{action.place}"
        # The order of groups may have changed.
        patch: list[Json] = [{"op": "test", "path": f"{group}/groupName", "value": action.group}]
        patch += [{"op": "add", "path": f"{group}/{name}", "value": value} for name, value in fields.items()]
        path = f"/apis/ray.io/v1/namespaces/{self._api.namespace}/rayclusters/{action.ray_cluster}"
        await self._api.patch(path, f"patch Ray cluster {action.ray_cluster}", patch)

    async def _evict(self, pod: RayPod) -> None:
        metadata = {"name": pod.name, "namespace": pod.namespace}
        body: Json = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": metadata,
            # There may be another pod with this name by now.
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            path = f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction"
            await self._api.create(path, f"evict pod {pod.name}", body)
        except ClusterError as error:
            if error.status == 429:
                raise ClusterError(429, f"evict pod {pod.name} yet", error.reason) from None
            if error.status not in (404, 409):  # the pod is gone, or is another one
                raise

    def _say(self, text: str) -> None:
        """Log a warning once while something leaves."""
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)


def gcs_address(ip: str | None) -> str | None:
    if ip is None:
        return None
    return f"[{ip}]:{GCS_PORT}" if ":" in ip else f"{ip}:{GCS_PORT}"
