"""The chart on a real Kubernetes: what operators do to it and what breaks, with clients that ask all the time.

In this order, on one release with one worker, since each start of it takes minutes.
"""

import json
import time
import uuid
from collections.abc import Iterator

import pytest

from support.release import Load, Release, prepared_chart, run, until

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1800)]

# On two cores a replica takes minutes to load beside one that serves.
REPLACED_TIMEOUT_S = 900.0


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The chart's default values, installed and asked for the first tokens."""
    made = Release(prepared_chart(tmp_path_factory.mktemp("chart")), "peagle", f"test-{uuid.uuid4().hex[:6]}")
    run("kubectl", "create", "namespace", made.namespace)
    began_s = time.monotonic()
    try:
        made.apply("install")
        made.wait_until_running()
        assert "peagle-embedded: " in made.test()
        print(f"from helm install to the first token: {time.monotonic() - began_s:.0f} s")
        yield made
    finally:
        made.helm("uninstall", made.name, "--ignore-not-found", "--timeout", "5m", check=False)
        run("kubectl", "delete", "namespace", made.namespace, "--timeout", "300s", check=False)


def seen(what: str, found: list[Load]) -> Load:
    (load,) = found
    print(f"{what}: {load.answered} answered, {len(load.lost)} lost, longest gap {load.longest_gap_s} s")
    return load


def test_the_pods_ask_for_no_more_than_a_small_node_has(release: Release) -> None:
    cpu_m, memory_mib = 0, 0
    for pod in release.objects("pods"):
        if pod["status"]["phase"] != "Running":
            continue
        for container in pod["spec"]["containers"]:
            asked = container["resources"]["requests"]
            cpu, memory = asked["cpu"], asked["memory"]
            cpu_m += int(cpu[:-1]) if cpu.endswith("m") else 1000 * int(cpu)
            memory_mib += int(memory[:-2]) * {"Mi": 1, "Gi": 1024}[memory[-2:]]
    assert cpu_m <= 2000
    assert memory_mib <= 6 * 1024


def test_a_node_with_the_only_worker_is_drained_and_no_request_is_lost(release: Release) -> None:
    ((pod, node),) = release.workers().items()
    with release.load() as found:
        try:
            run(
                "kubectl",
                "drain",
                node,
                "--ignore-daemonsets",
                "--delete-emptydir-data",
                "--timeout",
                "60s",
                "--pod-selector",
                f"app.kubernetes.io/instance={release.name},ray.io/node-type=worker",
                check=False,
            )
            until(lambda: pod not in str(release.objects("pods")), "the old worker is gone", REPLACED_TIMEOUT_S)
        finally:
            run("kubectl", "uncordon", node)
    load = seen("one worker, its node drained", found)
    assert load.lost == []
    ((_, other),) = release.workers().items()
    assert other != node


def test_the_only_worker_is_deleted_and_no_request_is_lost(release: Release) -> None:
    (pod,) = release.workers()
    with release.load() as found:
        release.kubectl("delete", "pod", pod, "--wait=false")
        until(lambda: pod not in str(release.objects("pods")), "the old worker is gone", REPLACED_TIMEOUT_S)
    assert seen("one worker, deleted", found).lost == []


def test_a_worker_that_is_killed_comes_back_and_what_was_lost_was_told(release: Release) -> None:
    (pod,) = release.workers()
    with release.load() as found:
        release.kubectl("delete", "pod", pod, "--grace-period", "0", "--force")
        until(lambda: pod not in release.workers(), "the killed worker is gone", 60.0)
        release.test()
    load = seen("one worker, killed", found)
    # A request that is neither answered nor refused would have been waited for.
    assert not [line for line in load.lost if "TimeoutError" in line]
    assert load.longest_gap_s < 300.0


def test_an_image_that_is_not_there_is_told_and_mended(release: Release) -> None:
    before = list(release.workers())
    release.apply("upgrade", "--reuse-values", "--set", "image.tag=absent")

    def is_told() -> bool:
        statuses = [s for pod in release.objects("pods") for s in pod["status"].get("containerStatuses", [])]
        return any("Image" in s.get("state", {}).get("waiting", {}).get("reason", "") for s in statuses)

    until(is_told, "a pod says that its image is missing", 120.0)
    release.helm("rollback", release.name)
    # The pods that ran are left alone, and the others go.
    until(lambda: list(release.workers()) == before, "only the worker from before is there", 900.0)
    assert "peagle-embedded: " in release.test()


def test_keys_are_asked_for_once_there_is_a_secret(release: Release) -> None:
    release.kubectl("create", "secret", "generic", "keys", "--from-literal", "keys=alpha")
    release.apply("upgrade", "--reuse-values", "--set", "apiKeys.existingSecret=keys")
    (pod,) = release.workers()
    ask = f"import urllib.request; urllib.request.urlopen('http://{release.name}:8000/v1/models')"
    without_key = ("exec", pod, "--container", "ray-worker", "--", "python", "-c", ask)
    until(lambda: "401" in release.kubectl(*without_key, check=False), "a request without a key is refused", 600.0)
    assert "peagle-embedded: " in release.test()
    release.helm("rollback", release.name)


def test_an_uninstall_leaves_nothing(release: Release) -> None:
    release.helm("uninstall", release.name, "--timeout", "5m")
    until(lambda: release.left() == "", "everything is gone", 120.0)
    rest = json.loads(run("kubectl", "get", "clusterroles,clusterrolebindings", "--output", "json"))["items"]
    assert [each["metadata"]["name"] for each in rest if release.namespace in each["metadata"]["name"]] == []
