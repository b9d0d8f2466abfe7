"""A release scaled to two workers and back, by `helm upgrade` alone, under load."""

from collections.abc import Iterator

import pytest

from support.kubernetes.release import Release, until

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1800)]

LOADED_TIMEOUT_S = 900.0


def scale(release: Release, count: int) -> None:
    deployment, group = "models.embedded.deployment", "workerGroups.cpu"
    of_model = f"{deployment}.replicas.min={count},{deployment}.replicas.max={count}"
    of_group = f"{group}.minReplicas={count},{group}.maxReplicas={count}"
    release.apply(
        "upgrade", "--values", str(release.chart / "values/embedded-cpu.yaml"), "--set", f"{of_model},{of_group}"
    )


@pytest.fixture(scope="module")
def raised(release: Release) -> Iterator[Release]:
    (before,) = release.workers()
    with release.load("raised to two workers") as load:
        scale(release, 2)
        until(lambda: len(release.workers()) == 2, "there are two workers", 120.0)
        release.wait_for_replicas(2, LOADED_TIMEOUT_S)
    assert load.lost == []
    assert before in release.workers()
    yield release
    with release.load("lowered to one worker") as load:
        scale(release, 1)
        until(lambda: len(release.workers()) == 1, "there is one worker", LOADED_TIMEOUT_S)
        release.wait_for_replicas(1, LOADED_TIMEOUT_S)
    assert load.lost == []


def test_a_node_is_drained_and_no_request_is_lost(raised: Release) -> None:
    (pod, node), *_ = raised.workers().items()
    with raised.load("two workers, a node drained") as load, raised.drained(node):
        until(lambda: pod not in raised.pods(), "the old worker is gone", LOADED_TIMEOUT_S)
    assert load.lost == []
    raised.wait_for_replicas(2, LOADED_TIMEOUT_S)


def test_a_worker_is_killed_and_the_other_one_serves(raised: Release) -> None:
    pod, *_ = raised.workers()
    with raised.load("two workers, one killed") as load:
        raised.kill(pod)
        raised.wait_for_replicas(2, LOADED_TIMEOUT_S)
    assert load.unanswered == []
    # What the killed one was answering at that moment, or was sent before its Service knew.
    assert len(load.lost) <= 8
    assert load.longest_gap_s < 30.0


def test_both_nodes_are_drained_at_once_and_no_request_is_lost(raised: Release) -> None:
    (one, of_one), (two, of_two) = raised.workers().items()
    with raised.load("two workers, both nodes drained at once") as load, raised.drained(of_one), raised.drained(of_two):
        gone = lambda: not {one, two} & set(raised.pods())  # noqa: E731
        until(gone, "both old workers are gone", LOADED_TIMEOUT_S)
    assert load.lost == []
