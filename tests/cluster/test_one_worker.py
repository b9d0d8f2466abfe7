"""A release with one worker: operator actions and failures, under continuous client load."""

import pytest

from support.kubernetes.release import Release, until

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1800)]

# On two cores a replica takes minutes to load beside one that serves.
REPLACED_TIMEOUT_S = 900.0


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


def test_its_node_is_drained_and_no_request_is_lost(release: Release) -> None:
    ((pod, node),) = release.workers().items()
    with release.load("one worker, its node drained") as load, release.drained(node):
        until(lambda: pod not in release.pods(), "the old worker is gone", REPLACED_TIMEOUT_S)
    assert load.lost == []
    ((_, other),) = release.workers().items()
    assert other != node


def test_it_is_deleted_and_no_request_is_lost(release: Release) -> None:
    (pod,) = release.workers()
    with release.load("one worker, deleted") as load:
        release.kubectl("delete", "pod", pod, "--wait=false")
        until(lambda: pod not in release.pods(), "the old worker is gone", REPLACED_TIMEOUT_S)
    assert load.lost == []


def test_it_is_killed_and_comes_back_and_what_was_lost_was_told(release: Release) -> None:
    (pod,) = release.workers()
    with release.load("one worker, killed") as load:
        release.kill(pod)
        # Its containers live on for a moment, and would answer the test.
        until(lambda: bool(release.ready("worker") - {pod}), "there is another worker", REPLACED_TIMEOUT_S)
        release.test()
    # A request that is neither answered nor refused would have been waited for.
    assert load.unanswered == []
    assert load.longest_gap_s < 300.0


def test_the_head_is_killed_without_a_store_and_all_comes_back(release: Release) -> None:
    with release.load("one worker, head killed, no store") as load:
        head = release.head()
        release.kill(head)
        until(lambda: bool(release.ready("head") - {head}), "there is another head", REPLACED_TIMEOUT_S)
        # The old replica, of which the new head knows nothing, would answer the test.
        release.wait_for_replicas(1, REPLACED_TIMEOUT_S)
        release.test()
    assert load.unanswered == []
    assert load.longest_gap_s < 600.0
