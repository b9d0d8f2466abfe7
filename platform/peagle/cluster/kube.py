"""The Kubernetes API as plain JSON, with the official client's configuration, credentials and transport.

The client's generated models refuse objects of newer API versions, and its watches either retry without a pause or hide
why they ended. So objects stay plain values here, and `peagle.cluster.watch` handles lost watches.
"""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.aio import client, config
from kubernetes.aio.stream import WsApiClient
from kubernetes.aio.stream.ws_client import ERROR_CHANNEL, STDERR_CHANNEL, STDOUT_CHANNEL

from peagle.errors import ClusterError, ConfigError

Json = dict[str, Any]

REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0
PAGE_ITEMS = 500
MAX_EVENT_BYTES = 4 * 2**20
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class KubeApi:
    """One cluster, accessed by one account. `namespace` is the default namespace."""

    def __init__(self, api_client: client.ApiClient, namespace: str) -> None:
        self._client = api_client
        self.namespace = namespace

    async def read(self, path: str, action: str, query: Mapping[str, str] | None = None) -> Json:
        """Get one object or a list. Raises ClusterError without an answer, or for a status from 400 up."""
        return await self._exchange("GET", path, action, query)

    async def create(self, path: str, action: str, body: Json) -> Json:
        """Create an object or a subresource such as an eviction. Raises as `read` does."""
        return await self._exchange("POST", path, action, body=body)

    async def patch(self, path: str, action: str, operations: Sequence[Json]) -> Json:
        """Change an object by a JSON patch, all operations or none. Raises as `read` does."""
        return await self._exchange("PATCH", path, action, body=operations)

    async def delete(self, path: str, action: str) -> Json:
        """Delete an object, after its dependents. Raises as `read` does."""
        return await self._exchange("DELETE", path, action, {"propagationPolicy": "Foreground"})

    async def list(self, path: str, action: str, query: Mapping[str, str] | None = None) -> tuple[list[Json], str]:
        """Get all objects of a collection, page by page, and the resource version at which a watch continues."""
        items: list[Json] = []
        asked = {**(query or {}), "limit": str(PAGE_ITEMS)}
        while True:
            page = await self.read(path, action, asked)
            metadata = _mapping(page.get("metadata") or {}, action)
            found = page.get("items") or []
            if not isinstance(found, list):
                raise _odd(action, found)
            items += [_named(item, action) for item in found]
            token = metadata.get("continue")
            if not token:
                return items, str(metadata.get("resourceVersion") or "")
            if token == asked.get("continue"):
                raise _odd(action, f"the continue token {token} again")
            asked["continue"] = str(token)

    async def watch(
        self, path: str, action: str, query: Mapping[str, str], silence_s: float
    ) -> AsyncIterator[tuple[str, Json]]:
        """Yield the events of a collection as (event type, object) until the connection ends.

        Raises:
            ClusterError: As for `read`; the status of an ERROR event; 0 after `silence_s` without a byte.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=silence_s)
        response = await self._send("GET", path, action, {**query, "watch": "true"}, None, timeout)
        try:
            buffer = b""
            async for chunk in response.content.iter_any():
                *lines, buffer = (buffer + chunk).split(b"\n")
                if len(buffer) > MAX_EVENT_BYTES:
                    raise ClusterError(0, action, "an event without an end")
                for line in filter(None, lines):
                    event = _mapping(json.loads(line), action)
                    kind, item = str(event.get("type")), _mapping(event.get("object"), action)
                    if kind == "ERROR":
                        raise _refusal(item["code"] if isinstance(item.get("code"), int) else 500, action, item)
                    # A bookmark reports the watch's progress, without an object.
                    yield kind, item if kind == "BOOKMARK" else _named(item, action)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            raise ClusterError(0, action, _said(error)) from None
        finally:
            response.close()

    async def run(self, pod: str, container: str, command: Sequence[str], action: str) -> str:
        """Run a command in a container and return its output, like `kubectl exec`.

        Raises ClusterError without an answer, for a refusal, or if the command failed, with its error output.
        """
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/exec"
        query = [("container", container), ("stdout", "true"), ("stderr", "true"), *(("command", c) for c in command)]
        said = {STDOUT_CHANNEL: b"", STDERR_CHANNEL: b"", ERROR_CHANNEL: b""}
        try:
            _, url, headers, _, _ = await self._client.param_serialize(
                "GET", path, query_params=query, auth_settings=["BearerToken"]
            )
            streams = WsApiClient(self._client.configuration)  # type: ignore[no-untyped-call]
            async with asyncio.timeout(REQUEST_TIMEOUT_S), streams:
                opened = await streams.call_api("GET", url, headers, _preload_content=False)  # type: ignore[no-untyped-call]
                async with opened.response as messages:
                    async for message in messages:
                        if message.type is aiohttp.WSMsgType.BINARY and message.data and message.data[0] in said:
                            said[message.data[0]] += message.data[1:]
            outcome = _mapping(json.loads(said[ERROR_CHANNEL]), action)
        except aiohttp.WSServerHandshakeError as error:
            raise ClusterError(error.status, action, error.message) from None
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            raise ClusterError(0, action, _said(error)) from None
        if outcome.get("status") != "Success":
            reason = said[STDERR_CHANNEL].decode(errors="replace").strip()
            raise _refusal(outcome.get("code", 500), action, {"message": reason} if reason else outcome)
        return said[STDOUT_CHANNEL].decode(errors="replace")

    async def _exchange(
        self,
        method: str,
        path: str,
        action: str,
        query: Mapping[str, str] | None = None,
        body: Json | Sequence[Json] | None = None,
    ) -> Json:
        timeout = aiohttp.ClientTimeout(total=REQUEST_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
        response = await self._send(method, path, action, query, body, timeout)
        try:
            answer = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError) as error:
            raise ClusterError(0, action, _said(error)) from None
        finally:
            response.release()
        return _mapping(answer, action)

    async def _send(
        self,
        method: str,
        path: str,
        action: str,
        query: Mapping[str, str] | None,
        body: Json | Sequence[Json] | None,
        limits: aiohttp.ClientTimeout,
    ) -> aiohttp.ClientResponse:
        accepted = {"Accept": "application/json"}
        if method == "PATCH":
            accepted["Content-Type"] = "application/json-patch+json"
        try:
            method, url, headers, content, _ = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=accepted,
                body=body,
                auth_settings=["BearerToken"],
            )
            sent = await self._client.call_api(method, url, headers, content, _request_timeout=limits)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ClusterError(0, action, _said(error)) from None
        response: aiohttp.ClientResponse = sent.response
        if response.status < 400:
            return response
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                details = await response.json(content_type=None)
        except (aiohttp.ClientError, OSError, ValueError, TimeoutError):
            details = {}
        finally:
            response.release()
        raise _refusal(response.status, action, details)


@asynccontextmanager
async def connect(context: str | None = None, namespace: str | None = None) -> AsyncIterator[KubeApi]:
    """Connect to a cluster as kubectl does: by the kubeconfig, or by the pod's service account if there is none.

    Raises ConfigError if there is neither, or `context` is not in the kubeconfig.
    """
    settings = client.Configuration()
    try:
        if context or _has_kubeconfig():
            loader = await config.load_kube_config(context=context, client_configuration=settings)  # type: ignore[no-untyped-call]
            own = loader.current_context["context"].get("namespace", "default")
        else:
            config.load_incluster_config(client_configuration=settings)  # type: ignore[no-untyped-call]
            own = _OWN_NAMESPACE.read_text(encoding="utf-8").strip()  # noqa: ASYNC240 - a file in memory
        api_client = client.ApiClient(configuration=settings)
    except Exception as error:  # a malformed kubeconfig may raise any exception in the loader
        fix = "Name a context of your kubeconfig with --context, or set KUBECONFIG."
        raise ConfigError("--context", context, f"no cluster is configured ({error})", fix) from None
    async with api_client:
        yield KubeApi(api_client, namespace or own)


def _has_kubeconfig() -> bool:
    places = config.KUBE_CONFIG_DEFAULT_LOCATION.split(os.pathsep)
    return any(Path(place).expanduser().exists() for place in places if place)


def _mapping(value: object, action: str) -> Json:
    if not isinstance(value, dict):
        raise _odd(action, value)
    return value


def _named(item: object, action: str) -> Json:
    """Return `item` if it is a Kubernetes object: its metadata has a name."""
    found = _mapping(item, action)
    if not isinstance(_mapping(found.get("metadata"), action).get("name"), str):
        raise _odd(action, item)
    return found


def _odd(action: str, value: object) -> ClusterError:
    return ClusterError(200, action, f"unexpected answer: {str(value)[:200]}")


def _refusal(status: int, action: str, details: object) -> ClusterError:
    reason = details.get("message") if isinstance(details, dict) else None
    return ClusterError(status, action, str(reason or "no reason given"))


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
