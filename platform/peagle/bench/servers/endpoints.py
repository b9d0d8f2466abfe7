"""Running servers to measure: their draft counts, and pinning of their K, if supported."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from peagle.bench.core.statistics import NO_DRAFTS, DraftCounts
from peagle.bench.servers.completions import Completions
from peagle.errors import ConfigError, PeagleError, StartupError

AS_SERVED = "as served"
PIN_S, POLL_S = 20.0, 0.1
LAST_STEPS_S = 0.3
"""Pause after a pass in seconds, because an engine counts its last step after that step's answer."""

_DRAFTS, _DRAFTED, _ACCEPTED = "drafts", "drafted", "accepted"
# The platform's series count positions from 1, vLLM's from 0; vLLM has no drafted counts by position.
_SERIES = {
    "peagle_replica_drafts_total": (_DRAFTS, 1),
    "peagle_replica_position_draft_tokens_total": (_DRAFTED, 1),
    "peagle_replica_position_accepted_tokens_total": (_ACCEPTED, 1),
    "vllm:spec_decode_num_drafts_total": (_DRAFTS, 0),
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": (_ACCEPTED, 0),
}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A server from the command line, and its measured model."""

    name: str
    url: str
    model: str


@dataclass(frozen=True, slots=True)
class EndpointVariant:
    """An endpoint at a pinned K, or unpinned if `depth` is None: a row of the result."""

    endpoint: Endpoint
    depth: int | None

    @property
    def depth_name(self) -> str:
        return AS_SERVED if self.depth is None else str(self.depth)

    @property
    def name(self) -> str:
        return self.endpoint.name if self.depth is None else f"{self.endpoint.name} K={self.depth}"


@dataclass(frozen=True, slots=True)
class EndpointClient:
    """An endpoint with the connections to it."""

    endpoint: Endpoint
    http: aiohttp.ClientSession
    completions: Completions

    async def counts(self) -> DraftCounts:
        """Return its verified drafts since its replicas started, if reported. Raises StartupError without an answer."""
        try:
            async with self.http.get(f"{self.endpoint.url}/metrics") as answer:
                said, status = await answer.text(), answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._silent(error) from error
        try:
            return read_counts(said, self.endpoint.model) if status == 200 else NO_DRAFTS
        except ValueError:  # another kind of server is at that URL
            return NO_DRAFTS

    async def check_pins(self) -> None:
        """Raise ConfigError if its K cannot be set from here, or an operator has already limited it."""
        for replica in await self._replicas():
            shown = await self._fleet("GET", f"replicas/{replica['id']}/depth")
            limits = shown["limits"]
            if limits["pin"] is not None or limits["paused"] or limits["floor"] or limits["ceiling"] is not None:
                problem = f"an operator has limited the depth of {self.endpoint.model} at {self.endpoint.url}"
                raise ConfigError("--depths", limits, problem, "DELETE that first, or measure without --depths.")

    @asynccontextmanager
    async def pinned(self, depth: int) -> AsyncIterator[None]:
        """Pin every replica to K = `depth` while entered; afterwards the Router chooses again.

        Raises:
            ConfigError: The model's K cannot be this large.
            StartupError: A replica does not apply it.
        """
        path = f"models/{self.endpoint.model}/depth"
        try:
            await self._fleet("PUT", path, {"pin": depth})
        except BaseException as error:  # including Ctrl-C: the pin may have been applied
            try:
                async with asyncio.timeout(PIN_S):
                    await self._fleet("DELETE", path)
            except (PeagleError, TimeoutError, ValueError):
                if not isinstance(error, ConfigError):  # a ConfigError means that it was refused
                    problem = f"{self.endpoint.url} may still hold {self.endpoint.model} at K = {depth}"
                    raise StartupError(problem, f"DELETE {self.endpoint.url}/fleet/{path} releases it.") from error
            raise
        try:
            await self._wait(lambda mode, depths: mode == "pinned" and set(depths) == {depth}, f"K = {depth}")
            yield
        finally:
            await self._fleet("DELETE", path)
            await self._wait(lambda mode, depths: mode != "pinned", "its own K")

    async def _wait(self, follows: Callable[[str | None, Sequence[int]], bool], what: str) -> None:
        deadline = time.monotonic() + PIN_S
        while not all(follows(each.get("depth_mode"), each.get("depths") or ()) for each in await self._replicas()):
            if time.monotonic() > deadline:
                problem = f"{self.endpoint.name} did not reach {what} within {PIN_S:g} s"
                raise StartupError(problem, "See its log and `peagle status`.")
            await asyncio.sleep(POLL_S)

    async def _replicas(self) -> list[dict[str, Any]]:
        fleet = await self._fleet("GET", "")
        return [each for model in fleet["models"] if model["name"] == self.endpoint.model for each in model["replicas"]]

    async def _fleet(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        url = f"{self.endpoint.url}/fleet/{path}".rstrip("/")
        try:
            async with self.http.request(method, url, json=body) as answer:
                if answer.status == 200:
                    return await answer.json()
                said = (await answer.text())[:200]
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._silent(error) from error
        problem = f"K cannot be set at {url}: {answer.status} {said}"
        fix = "Run this on the server's machine, for a model with speculation.adaptive, with K up to its depth_max."
        raise ConfigError("--depths", body and body["pin"], problem, fix)

    def _silent(self, error: Exception) -> StartupError:
        return StartupError(f"{self.endpoint.name} does not answer ({error!r})", "See its log.")


def read_counts(exposition: str, model: str) -> DraftCounts:
    """Parse the drafts of all replicas of a model from `/metrics` of the platform or of vLLM's own server.

    vLLM does not report how many drafts reached a position: all are assumed to, which holds at a constant K.
    """
    counted: dict[str, Counter[int]] = {field: Counter() for field in (_DRAFTS, _DRAFTED, _ACCEPTED)}
    for family in text_string_to_metric_families(exposition):
        for sample in family.samples:
            if sample.name in _SERIES and model in (sample.labels.get("model"), sample.labels.get("model_name")):
                field, first = _SERIES[sample.name]
                counted[field][int(sample.labels.get("position", first)) - first] += int(sample.value)
    drafts, positions = counted[_DRAFTS][0], range(max([*counted[_DRAFTED], *counted[_ACCEPTED]], default=-1) + 1)
    drafted = counted[_DRAFTED] or Counter(dict.fromkeys(positions, drafts))
    return DraftCounts(
        drafts, tuple(drafted[at] for at in positions), tuple(counted[_ACCEPTED][at] for at in positions)
    )
