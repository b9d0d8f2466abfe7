"""Watching a collection of a Kubernetes API over HTTP, through every kind of failure."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
from kubernetes.aio import client

from peagle.cluster import watch as watching
from peagle.cluster.drain.drain_actions import KubeNode, parse_node
from peagle.cluster.kube import KubeApi
from peagle.cluster.watch import Collection, Watch
from peagle.errors import ClusterError
from support.kubernetes.kubernetes_api import KubernetesApi, client_of, node
from support.waiting import until

NODES: Collection[KubeNode] = Collection("nodes", "/api/v1/nodes", parse_node, {})


@pytest.fixture
async def server() -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi() as serving:
        await serving.put("nodes", node("a"))
        await serving.put("nodes", node("b"))
        yield serving


@pytest.fixture
async def api(server: KubernetesApi) -> AsyncIterator[KubeApi]:
    async with client_of(server) as connected:
        yield connected


@pytest.fixture
async def nodes(api: KubeApi) -> AsyncIterator[Watch[KubeNode]]:
    """A running watch."""
    watch = Watch(api, NODES, asyncio.Event())
    task = asyncio.create_task(watch.run())
    await until(lambda: len(watch.objects) == 2)
    yield watch
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def names(watch: Watch[KubeNode]) -> set[str]:
    return {each.name for each in watch.objects.values()}


async def test_changes_arrive_as_they_happen(server: KubernetesApi, nodes: Watch[KubeNode]) -> None:
    await server.put("nodes", node("c"))
    await server.merge("nodes", "a", {"spec": {"unschedulable": True}})
    await server.remove("nodes", "b")
    await until(lambda: names(nodes) == {"a", "c"} and nodes.objects["/a"].is_cordoned)
    assert server.count("list", "nodes") == 1


async def test_a_dropped_connection_goes_on_where_it_ended(server: KubernetesApi, nodes: Watch[KubeNode]) -> None:
    await until(lambda: server.count("watch", "nodes") == 1)
    server.drop_connections()
    await server.remove("nodes", "b")
    await server.put("nodes", node("c"))
    await until(lambda: names(nodes) == {"a", "c"})
    assert server.count("list", "nodes") == 1, "everything was listed again for one lost connection"


async def test_a_forgotten_past_is_listed_anew(server: KubernetesApi, nodes: Watch[KubeNode]) -> None:
    await until(lambda: server.count("watch", "nodes") == 1)
    server.mute.add("nodes")
    await server.remove("nodes", "b")
    await server.put("nodes", node("c"))
    server.compact()
    server.mute.clear()
    await until(lambda: names(nodes) == {"a", "c"})
    assert server.count("list", "nodes") == 2


async def test_a_connection_that_has_silently_died_is_noticed(
    server: KubernetesApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "SILENCE_S", 0.2)
    watch = Watch(api, NODES, asyncio.Event())
    task = asyncio.create_task(watch.run())
    await until(lambda: server.count("watch", "nodes") >= 2)
    task.cancel()


async def test_an_api_that_ends_every_watch_is_not_hammered(
    server: KubernetesApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "WATCH_S", 0)
    pauses_s: list[float] = []

    async def paused(seconds: float) -> None:
        pauses_s.append(seconds)
        await asyncio.sleep(0)

    watch = Watch(api, NODES, asyncio.Event(), now_s=lambda: 0.0, sleep=paused)
    task = asyncio.create_task(watch.run())
    await until(lambda: server.count("watch", "nodes") >= 6)
    task.cancel()
    assert pauses_s[:6] == [0.0, 0.25, 0.5, 1.0, 2.0, 2.0]


async def test_a_right_taken_away_and_given_back_is_survived(
    server: KubernetesApi, nodes: Watch[KubeNode], caplog: pytest.LogCaptureFixture
) -> None:
    await until(lambda: server.count("watch", "nodes") == 1)
    with caplog.at_level(logging.WARNING):
        server.refused.add(("watch", "nodes"))
        server.drop_connections()
        await until(lambda: "Grant it that right" in caplog.text)
    assert "list and watch nodes" in caplog.text
    await server.put("nodes", node("c"))
    server.refused.clear()
    await until(lambda: "c" in names(nodes))


async def test_a_refused_list_says_what_to_grant(server: KubernetesApi, api: KubeApi) -> None:
    server.refused.add(("list", "nodes"))
    with pytest.raises(ClusterError, match=r"does not let this account list and watch nodes .*forbidden") as caught:
        await Watch(api, NODES, asyncio.Event()).load()
    assert caught.value.status == 403


async def test_an_api_that_is_not_there_is_told_as_such() -> None:
    async with client.ApiClient(client.Configuration(host="http://127.0.0.1:9")) as api_client:
        with pytest.raises(ClusterError, match="does not answer") as caught:
            await KubeApi(api_client, "serving").list("/api/v1/nodes", "list nodes")
    assert caught.value.status == 0


async def test_a_long_list_comes_in_pages(server: KubernetesApi, api: KubeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.cluster.kube.PAGE_ITEMS", 2)
    for number in range(5):
        await server.put("nodes", node(f"n{number}"))
    items, version = await api.list("/api/v1/nodes", "list nodes")
    assert len(items) == 7
    assert server.count("list", "nodes") == 4
    assert int(version) > 100


ODD = ([], None, "x", 3, {"items": 3}, {"items": [None]}, {"items": [{"metadata": None}]}, {"metadata": [1]})


@pytest.mark.parametrize("odd", ODD, ids=str)
async def test_an_answer_of_another_shape_is_one_error(server: KubernetesApi, api: KubeApi, odd: Any) -> None:
    server.replies["/api/v1/nodes"] = odd
    with pytest.raises(ClusterError, match="Kubernetes could not list nodes: status 200"):
        await api.list("/api/v1/nodes", "list nodes")


async def test_a_list_that_never_ends_is_ended(server: KubernetesApi, api: KubeApi) -> None:
    server.replies["/api/v1/nodes"] = {"items": [], "metadata": {"continue": "again"}}
    with pytest.raises(ClusterError, match="the continue token again again"):
        await api.list("/api/v1/nodes", "list nodes")


@pytest.mark.parametrize("event", ["[]", "3", "{}", '{"type": "ADDED", "object": 3}',
                                   '{"type": "ADDED", "object": {"metadata": null}}',
                                   '{"type": "ERROR", "object": {"code": "x"}}'])  # fmt: skip
async def test_an_event_of_another_shape_ends_the_watch_and_not_the_watcher(
    server: KubernetesApi, nodes: Watch[KubeNode], event: str
) -> None:
    await until(lambda: server.count("watch", "nodes") == 1)
    server.said.append(event)
    await until(lambda: server.count("watch", "nodes") >= 2)
    await server.put("nodes", node("c"))
    await until(lambda: "c" in names(nodes))


async def test_an_object_of_another_shape_is_passed_over(
    server: KubernetesApi, nodes: Watch[KubeNode], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        await server.put("nodes", {"metadata": {"name": "odd"}, "spec": {"taints": [3]}})
        await server.put("nodes", node("c"))
        await until(lambda: "c" in names(nodes))
    assert "/odd is ignored" in caplog.text
    assert names(nodes) == {"a", "b", "c"}
