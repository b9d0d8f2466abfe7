"""A local copy of a Kubernetes collection, kept current by one list and a continuous watch.

The official informers retry a refused watch without a pause and a refused list with a traceback, and cannot detect a
silently broken connection.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from peagle.cluster.kube import Json, KubeApi
from peagle.errors import ClusterError

logger = logging.getLogger(__name__)

# The API ends a watch after the first time; a connection without a byte for the second counts as dead. Resuming a watch
# costs one small request.
WATCH_S, SILENCE_S = 10, 15.0
PAUSES_S = (0.0, 0.25, 0.5, 1.0, 2.0)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Collection(Generic[T]):
    """A watched collection. `parse` returns None for objects to ignore."""

    name: str
    path: str
    parse: Callable[[Json], T | None]
    query: Mapping[str, str]


class Watch(Generic[T]):
    """The objects of one collection, by namespace and name; `changed` is set whenever one of them changes."""

    def __init__(
        self,
        api: KubeApi,
        collection: Collection[T],
        changed: asyncio.Event,
        now_s: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._api, self._collection, self._changed = api, collection, changed
        self._now_s, self._sleep = now_s, sleep
        self._action = f"list and watch {collection.name}"
        self._version: str | None = None
        self.objects: dict[str, T] = {}

    async def load(self) -> None:
        """List the collection again. Raises ClusterError if it cannot be listed."""
        items, version = await self._api.list(self._collection.path, self._action, self._collection.query)
        self.objects = {key_of(item): parsed for item in items if (parsed := self._parsed(item)) is not None}
        self._version = version
        self._changed.set()

    async def run(self) -> NoReturn:
        """Follow the collection forever, across restarts, expired versions, refusals and outages of the API."""
        failures = 0
        while True:
            await self._sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
            try:
                if self._version is None:
                    await self.load()
                began_s = self._now_s()
                events = await self._follow()
                # An API that ends every watch at once counts as refusing.
                failures = 0 if events or self._now_s() - began_s > 1.0 else failures + 1
            except ClusterError as error:
                failures += 1
                if error.status == 410:
                    self._version = None
                # A connection that ends is normal; it is logged from the second failure on, at growing intervals.
                if failures in (2, 5) or failures % 100 == 0:
                    logger.warning("%s (attempt %d)", error, failures)

    async def _follow(self) -> int:
        """Apply events until the API ends the watch, as it does regularly; return their number."""
        events = 0
        query = {
            **self._collection.query,
            "resourceVersion": self._version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        async for kind, item in self._api.watch(self._collection.path, self._action, query, SILENCE_S):
            events += 1
            self._version = str((item.get("metadata") or {}).get("resourceVersion") or "") or None
            if kind == "BOOKMARK":
                continue
            parsed = self._parsed(item) if kind != "DELETED" else None
            if parsed is None:
                self.objects.pop(key_of(item), None)
            else:
                self.objects[key_of(item)] = parsed
            self._changed.set()
        return events

    def _parsed(self, item: Json) -> T | None:
        """Return the parsed object; None if its shape does not match its kind."""
        try:
            return self._collection.parse(item)
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            logger.warning("%s: %s is ignored: %r", self._action, key_of(item), error)
            return None


def key_of(item: Json) -> str:
    metadata = item["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"
