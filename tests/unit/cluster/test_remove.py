"""Objects that an uninstall deletes before the operator, against a Kubernetes API over HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from peagle.cluster.remove import main, remove
from peagle.errors import ClusterError
from support.kubernetes.kubernetes_api import Json, KubernetesApi, client_of, ray_cluster, ray_pod
from support.waiting import until


def labelled(name: str, **labels: str) -> Json:
    keys = {f"app.kubernetes.io/{key}": value for key, value in labels.items()}
    return {"metadata": {"name": name, "namespace": "serving", "labels": keys}}


@pytest.fixture
async def server() -> AsyncIterator[KubernetesApi]:
    """A release `r` with its test pod, and another release."""
    async with KubernetesApi() as serving:
        await serving.put("rayservices", labelled("r", instance="r"))
        await serving.put("rayservices", labelled("other", instance="other"))
        await serving.put("rayclusters", ray_cluster(replicas=1))
        await serving.put("pods", ray_pod("w-a", on="a"))
        await serving.put("pods", ray_pod("w-other", on="a", release="other"))
        await serving.put("pods", labelled("r-test", instance="r", component="test"))
        yield serving


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("peagle.cluster.remove.POLL_S", 0.01)


async def test_it_waits_until_the_operator_has_removed_what_the_ray_service_owned(server: KubernetesApi) -> None:
    async with client_of(server) as api:
        removing = asyncio.create_task(remove(api, "r", timeout_s=30.0))
        await until(lambda: "r" not in server.names("rayservices"))
        asked = server.count("list", "rayclusters")
        await until(lambda: server.count("list", "rayclusters") > asked + 2)
        assert not removing.done()
        await server.remove("rayclusters", "r-ray", "serving")
        await server.remove("pods", "w-a", "serving")
        assert await removing == []
    assert server.names("rayservices") == {"other"}
    assert server.names("pods") == {"w-other"}


async def test_what_is_still_there_at_the_end_is_named(server: KubernetesApi) -> None:
    async with client_of(server) as api:
        assert await remove(api, "r", timeout_s=0.0) == ["raycluster r-ray", "pod w-a"]


async def test_a_release_without_anything_left_is_done_at_once(server: KubernetesApi) -> None:
    async with client_of(server) as api:
        assert await remove(api, "gone", timeout_s=30.0) == []


async def test_a_right_that_lacks_is_named(server: KubernetesApi) -> None:
    server.refused.add(("delete", "rayservices"))
    async with client_of(server) as api:
        with pytest.raises(ClusterError, match="does not let this account delete r"):
            await remove(api, "r", timeout_s=0.0)


@pytest.mark.parametrize(("left", "status"), [(["raycluster r-ray"], 1), (["pod w-a"], 0), ([], 0)])
def test_the_uninstall_goes_on_once_no_operator_is_needed(
    left: list[str], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def removed(*_: object) -> list[str]:
        return left

    @asynccontextmanager
    async def connected(**_: object) -> AsyncIterator[None]:
        yield None

    monkeypatch.setattr("peagle.cluster.remove.connect", connected)
    monkeypatch.setattr("peagle.cluster.remove.remove", removed)
    assert main(["--release", "r", "--namespace", "serving", "--timeout-s", "1"]) == status
