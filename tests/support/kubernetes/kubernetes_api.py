"""A Kubernetes API over HTTP, limited to the parts that this project uses.

kmock was looked at first: its watches start over from every object whatever revision is asked for, and its objects have
no resource versions, so that neither a resumed watch nor 410 Gone nor a conflict can happen. Here every change has a
revision, as in etcd: a list says which one it shows, a watch goes on from any that is not compacted yet.
"""

import asyncio
import copy
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from aiohttp import web
from kubernetes.aio import client

from peagle.cluster.kube import KubeApi

Json = dict[str, Any]
PATH = re.compile(
    r"/(?P<group>api/v1|apis/[^/]+/[^/]+)(/namespaces/(?P<namespace>[^/]+))?/(?P<resource>[^/]+)"
    r"(/(?P<name>[^/]+)(/(?P<subresource>.+))?)?"
)

CHANGES = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}


@dataclass(frozen=True)
class Change:
    """One revision: event, object and collection, such as `pods`."""

    revision: int
    kind: str
    resource: str
    item: Json


@dataclass
class KubernetesApi:
    """Serve while entered, at `url`.

    Attributes:
        refused: (verb, resource) pairs answered with 403, such as `("list", "nodes")`.
        budgeted: Names of pods whose eviction a disruption budget refuses.
        replies: What `GET` of a path answers instead of objects, such as the version.
        printed: What commands in containers print, by (pod, container, command line); others fail, as unknown ones do.
        said: Lines that open watches say next, whatever they are.
        mute: Resources whose open watches say nothing, as if their connections were dead.
        requests: (verb, resource or path, name) of every request so far.
    """

    refused: set[tuple[str, str]] = field(default_factory=set)
    budgeted: set[str] = field(default_factory=set)
    replies: dict[str, Json] = field(default_factory=dict)
    printed: dict[tuple[str, str, str], str] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)
    mute: set[str] = field(default_factory=set)
    url: str = ""
    _objects: dict[tuple[str, str, str], Json] = field(default_factory=dict)
    _log: list[Change] = field(default_factory=list)
    _revision: int = 100
    _compacted: int = 100
    _uids: Callable[[], int] = field(default_factory=lambda: itertools.count(1).__next__)
    _watches: set[asyncio.Transport] = field(default_factory=set)
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        self.drop_connections()
        await self._runner.cleanup()

    # Changes by a test.

    async def put(self, resource: str, item: Json) -> Json:
        """Create or replace an object, as another client would."""
        metadata = item["metadata"]
        key = (resource, metadata.get("namespace", ""), metadata["name"])
        before = self._objects.get(key)
        self._revision += 1
        uid = before["metadata"]["uid"] if before else f"uid-{self._uids()}"
        stored = {**item, "metadata": {"uid": uid, **metadata, "resourceVersion": str(self._revision)}}
        self._objects[key] = stored
        await self._record("MODIFIED" if before else "ADDED", resource, stored)
        return stored

    async def merge(self, resource: str, name: str, changes: Json, namespace: str = "") -> Json:
        """Merge `changes` into an object."""
        return await self.put(resource, _merged(self._objects[resource, namespace, name], changes))

    async def remove(self, resource: str, name: str, namespace: str = "") -> None:
        self._revision += 1
        item = self._objects.pop((resource, namespace, name))
        gone = {**item, "metadata": {**item["metadata"], "resourceVersion": str(self._revision)}}
        await self._record("DELETED", resource, gone)

    def names(self, resource: str) -> set[str]:
        return {name for kind, _, name in self._objects if kind == resource}

    def drop_connections(self) -> None:
        """Break every open watch, like a restarting load balancer."""
        for transport in list(self._watches):
            transport.abort()

    def compact(self) -> None:
        """Forget the past: a watch from before now is answered with 410 Gone."""
        self._compacted = self._revision
        self._log.clear()

    def count(self, verb: str, resource: str) -> int:
        return sum(1 for asked in self.requests if asked[:2] == (verb, resource))

    def kubeconfig(self) -> str:
        """Return a kubeconfig whose only context has the namespace `serving`."""
        config = {
            "current-context": "c",
            "clusters": [{"name": "k", "cluster": {"server": self.url}}],
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "serving"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
        }
        return json.dumps(config)

    # Served requests.

    async def _record(self, kind: str, resource: str, item: Json) -> None:
        self._log.append(Change(self._revision, kind, resource, item))
        async with self._changed:
            self._changed.notify_all()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        if request.path in self.replies:
            self.requests.append(("get", request.path, ""))
            return web.json_response(self.replies[request.path])
        found = PATH.fullmatch(request.path)
        if found is None:
            return _status(404, "NotFound", f"the server could not find {request.path}")
        resource, space = found["resource"], found["namespace"] or ""
        name, subresource = unquote(found["name"] or ""), found["subresource"]
        verb = _verb(request, name)
        full = f"{resource}/{subresource}" if subresource else resource
        self.requests.append((verb, full, name))
        if (verb, full) in self.refused:
            return _status(403, "Forbidden", f'{full} is forbidden: User "test" cannot {verb} resource "{full}"')
        if subresource == "exec":
            return await self._run(request, name)
        if subresource == "eviction":
            return await self._evict(space, name, await request.json())
        if resource == "selfsubjectaccessreviews":
            asked = (await request.json())["spec"]["resourceAttributes"]
            allowed = (asked["verb"], asked["resource"]) not in self.refused
            return web.json_response({"status": {"allowed": allowed}}, status=201)
        if verb == "watch":
            return await self._watch(request, resource, space)
        if verb == "list":
            return self._list(request, resource, space)
        item = self._objects.get((resource, space, name))
        if item is not None and verb == "patch":
            return await self._patch(resource, item, await request.json())
        if item is not None and verb == "delete":
            await self.remove(resource, name, space)
        return web.json_response(item) if item else _status(404, "NotFound", f'{resource} "{name}" not found')

    def _list(self, request: web.Request, resource: str, namespace: str) -> web.Response:
        fits = _selector(request.query.get("labelSelector", ""))
        items = [
            item
            for (kind, space, _), item in sorted(self._objects.items())
            if kind == resource and namespace in ("", space) and fits(item)
        ]
        start, limit = int(request.query.get("continue", 0)), int(request.query.get("limit", len(items) or 1))
        page = items[start : start + limit]
        metadata = {"resourceVersion": str(self._revision)}
        if start + limit < len(items):
            metadata["continue"] = str(start + limit)
        return web.json_response({"kind": "List", "metadata": metadata, "items": page})

    async def _watch(self, request: web.Request, resource: str, namespace: str) -> web.StreamResponse:
        revision = int(request.query.get("resourceVersion") or 0)
        ends_s = time.monotonic() + float(request.query.get("timeoutSeconds", 3600))
        fits = _selector(request.query.get("labelSelector", ""))
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        transport = request.transport
        assert transport is not None
        self._watches.add(transport)
        await response.prepare(request)
        try:
            while (left_s := ends_s - time.monotonic()) > 0:
                if revision < self._compacted and resource not in self.mute:
                    gone = _failure(410, "Expired", f"too old resource version: {revision} ({self._compacted})")
                    await _event(response, "ERROR", gone)
                    break
                while self.said:
                    await response.write(self.said.pop().encode() + b"\n")
                for change in [] if resource in self.mute else list(self._log):
                    space = change.item["metadata"].get("namespace", "")
                    if change.revision > revision and change.resource == resource and namespace in ("", space):
                        revision = change.revision
                        if fits(change.item):
                            await _event(response, change.kind, change.item)
                async with self._changed:
                    try:
                        async with asyncio.timeout(min(left_s, 0.05)):
                            await self._changed.wait()
                    except TimeoutError:
                        continue
        except ConnectionError:
            pass
        finally:
            self._watches.discard(transport)
        return response

    async def _run(self, request: web.Request, pod: str) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        line = " ".join(request.query.getall("command"))
        printed = self.printed.get((pod, request.query["container"], line))
        if printed is None:
            await socket.send_bytes(b"\x02" + f"{line}: not found".encode())
            outcome = _failure(500, "NonZeroExitCode", "command terminated with exit code 127")
        else:
            # A long output is sent in several messages.
            for start in range(0, len(printed), 100):
                await socket.send_bytes(b"\x01" + printed[start : start + 100].encode())
            outcome = {"kind": "Status", "status": "Success"}
        await socket.send_bytes(b"\x03" + json.dumps(outcome).encode())
        await socket.close()
        return socket

    async def _patch(self, resource: str, item: Json, operations: list[Json]) -> web.Response:
        """A JSON patch of `test` and `add` operations."""
        changed = copy.deepcopy(item)
        for operation in operations:
            *parents, last = operation["path"].removeprefix("/").split("/")
            holder: Any = changed
            for part in parents:
                holder = holder[int(part) if isinstance(holder, list) else part]
            if operation["op"] == "test" and holder[last] != operation["value"]:
                return _status(422, "Invalid", f"testing value {operation['path']} failed")
            if operation["op"] == "add":
                holder[last] = operation["value"]
        return web.json_response(await self.put(resource, changed))

    async def _evict(self, namespace: str, name: str, body: Json) -> web.Response:
        pod = self._objects.get(("pods", namespace, name))
        if pod is None:
            return _status(404, "NotFound", f'pods "{name}" not found')
        wanted = body.get("deleteOptions", {}).get("preconditions", {}).get("uid")
        if wanted not in (None, pod["metadata"]["uid"]):
            return _status(409, "Conflict", f"the UID in the precondition ({wanted}) does not match")
        if name in self.budgeted:
            return _status(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
        await self.remove("pods", name, namespace)
        return web.json_response(_failure(201, "", "") | {"status": "Success"}, status=201)


@asynccontextmanager
async def client_of(server: KubernetesApi) -> AsyncIterator[KubeApi]:
    """This project's client of `server`, with the namespace `serving`."""
    async with client.ApiClient(client.Configuration(host=server.url)) as api_client:
        yield KubeApi(api_client, "serving")


def node(name: str, **spec: Any) -> Json:
    return {"metadata": {"name": name, "labels": {}}, "spec": spec, "status": {}}


def ray_pod(name: str, on: str | None, kind: str = "worker", ip: str = "10.0.0.9", release: str = "r") -> Json:
    """Return a pod as KubeRay creates it for the Ray cluster `r-ray`, in the namespace `serving`."""
    labels = {
        "ray.io/node-type": kind,
        "ray.io/cluster": "r-ray",
        "ray.io/group": "headgroup" if kind == "head" else "cpu",
        "app.kubernetes.io/instance": release,
    }
    spec = {"nodeName": on} if on else {}
    status = {"phase": "Running", "podIP": ip} if on else {"phase": "Pending"}
    return {"metadata": {"name": name, "namespace": "serving", "labels": labels}, "spec": spec, "status": status}


def ray_cluster(replicas: int, deleted: Sequence[str] = ()) -> Json:
    """Return the Ray cluster `r-ray` with one worker group, in the namespace `serving`, of the RayService `r`."""
    group = _group(replicas)
    if deleted:
        group["scaleStrategy"] = {"workersToDelete": list(deleted)}
    labels = {"app.kubernetes.io/instance": "r", "ray.io/originated-from-cr-name": "r"}
    metadata = {"name": "r-ray", "namespace": "serving", "labels": labels}
    return {"metadata": metadata, "spec": {"workerGroupSpecs": [group]}}


def ray_service(replicas: int) -> Json:
    """Return the RayService `r` with one worker group, as reconciled by KubeRay."""
    labels = {"app.kubernetes.io/instance": "r"}
    return {
        "metadata": {"name": "r", "namespace": "serving", "labels": labels, "generation": 3},
        "spec": {"rayClusterConfig": {"workerGroupSpecs": [_group(replicas)]}},
        "status": {"observedGeneration": 3},
    }


def _group(replicas: int) -> Json:
    return {"groupName": "cpu", "replicas": replicas, "minReplicas": replicas, "maxReplicas": replicas}


def _verb(request: web.Request, name: str) -> str:
    if request.method in CHANGES:
        return CHANGES[request.method]
    if request.query.get("watch") == "true":
        return "watch"
    return "get" if name else "list"


def _selector(text: str) -> Callable[[Json], bool]:
    terms = [term.partition("=") for term in text.split(",") if term]

    def fits(item: Json) -> bool:
        labels = item["metadata"].get("labels") or {}
        return all(labels.get(key) == value if equals else key in labels for key, equals, value in terms)

    return fits


def _merged(base: Json, changes: Json) -> Json:
    merged = dict(base)
    for key, value in changes.items():
        merged[key] = _merged(base.get(key) or {}, value) if isinstance(value, dict) else value
    return merged


def _failure(code: int, reason: str, message: str) -> Json:
    return {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}


def _status(code: int, reason: str, message: str) -> web.Response:
    return web.json_response(_failure(code, reason, message), status=code)


async def _event(response: web.StreamResponse, kind: str, item: Json) -> None:
    await response.write(json.dumps({"type": kind, "object": item}).encode() + b"\n")
