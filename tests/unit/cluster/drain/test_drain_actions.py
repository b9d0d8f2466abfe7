"""Decisions about Ray workers on leaving nodes."""

from dataclasses import replace

import pytest

from peagle.cluster.drain.drain_actions import (
    TERMINATION_TAINTS,
    Action,
    Drain,
    DrainPolicy,
    GroupSize,
    KubeNode,
    RayCluster,
    RayNode,
    RayPod,
    RayService,
    Release,
    Replace,
    Resize,
    Stay,
    WorkerGroup,
    decide,
    parse_node,
    parse_pod,
    parse_ray_cluster,
    parse_ray_service,
    replacements,
    resizes,
)
from support.kubernetes.kubernetes_api import node, ray_cluster, ray_pod, ray_service

NOW_MS = 1_000_000
POLICY = DrainPolicy(patience_s=300.0, finish_s=60.0)
KEPT, CORDONED = KubeNode("kept", False, ()), KubeNode("left", True, ())
WORKER = RayPod(
    "w1", "serving", "uid-1", "ray", "cpu", is_head=False, is_ending=False, is_ready=True, node="left", ip="10.0.0.1"
)
HEAD = replace(WORKER, name="head", uid="uid-0", group="headgroup", is_head=True, node="kept")
OTHER = replace(WORKER, name="w2", uid="uid-2", node="kept")
RUNS, DRAINS = RayNode("aa", "w1", None), RayNode("aa", "w1", NOW_MS + 1)


def decided(
    left: KubeNode = CORDONED,
    pods: tuple[RayPod, ...] = (HEAD, WORKER),
    ray_nodes: tuple[RayNode, ...] | None = (RUNS,),
    policy: DrainPolicy = POLICY,
) -> list[Action]:
    nodes = {each.name: each for each in (KEPT, left)}
    return decide(nodes, pods, {} if ray_nodes is None else {"ray": ray_nodes}, NOW_MS, policy)


def test_while_no_node_leaves_nothing_is_done() -> None:
    assert decided(KubeNode("left", False, ("nvidia.com/gpu",))) == []


def test_a_cordoned_node_is_drained_with_patience_and_time_to_finish() -> None:
    assert decided() == [Drain(WORKER, "aa", NOW_MS + 360_000, "node left is cordoned")]


@pytest.mark.parametrize("key", TERMINATION_TAINTS)
def test_a_node_about_to_be_taken_away_is_drained_without_patience(key: str) -> None:
    reason = f"node left has the taint {key}"
    for is_cordoned in (False, True):
        assert decided(KubeNode("left", is_cordoned, ("x", key))) == [Drain(WORKER, "aa", NOW_MS + 60_000, reason)]


def test_an_operator_adds_taints_of_his_own() -> None:
    left = KubeNode("left", False, ("example.org/leaving",))
    assert decided(left) == []
    assert len(decided(left, policy=DrainPolicy(taints=frozenset({"example.org/leaving"})))) == 1


def test_what_drains_already_is_given_its_time() -> None:
    assert decided(ray_nodes=(DRAINS,)) == []


def test_a_pod_is_released_once_ray_has_ended_in_it() -> None:
    assert decided(ray_nodes=()) == [Release(WORKER, "node left is cordoned and Ray has ended there")]


def test_ray_that_came_back_in_a_restarted_container_drains_again() -> None:
    actions = decided(ray_nodes=(replace(DRAINS, deadline_ms=NOW_MS - 1), replace(RUNS, id="bb")))
    assert [action.ray_node for action in actions if isinstance(action, Drain)] == ["bb"]
    assert not [action for action in actions if isinstance(action, Release)]


def test_a_pod_that_outlives_its_deadline_is_released_all_the_same() -> None:
    late = replace(DRAINS, deadline_ms=NOW_MS)
    assert decided(ray_nodes=(late,)) == [Release(WORKER, "node left is cordoned and its deadline has passed")]


def test_a_pod_that_ends_already_is_drained_but_not_evicted_again() -> None:
    ending = replace(WORKER, is_ending=True)
    assert [type(action) for action in decided(pods=(ending,))] == [Drain]
    assert decided(pods=(ending,), ray_nodes=()) == []


def test_a_ray_cluster_that_does_not_answer_is_left_alone() -> None:
    assert decided(ray_nodes=None) == []


def test_a_head_is_never_drained() -> None:
    head = replace(HEAD, node="left")
    assert decided(pods=(head,), ray_nodes=(RayNode("cc", "head", None),)) == [Stay(head, "node left is cordoned")]


def test_pods_elsewhere_or_nowhere_are_not_touched() -> None:
    assert decided(pods=(replace(WORKER, node="kept"), replace(WORKER, node=None), replace(WORKER, node="lost"))) == []


BOTH = (WORKER, replace(OTHER, node="left"))
GOES, STAYS = Drain(WORKER, "aa", NOW_MS + 360_000, "node left is cordoned"), RayNode("bb", "w2", None)


def test_where_all_workers_are_to_leave_the_last_ready_one_waits_for_the_next() -> None:
    assert decided(pods=BOTH, ray_nodes=(RUNS, STAYS)) == [GOES]
    starts = replace(OTHER, name="w3", is_ready=False)
    assert decided(pods=(*BOTH, starts), ray_nodes=(RUNS, STAYS)) == [GOES]
    drained = decided(pods=(*BOTH, replace(starts, is_ready=True)), ray_nodes=(RUNS, STAYS))
    assert [each.pod.name for each in drained if isinstance(each, Drain)] == ["w1", "w2"]


def test_the_one_that_already_ends_is_the_one_that_leaves() -> None:
    pods = (WORKER, replace(OTHER, node="left", is_ending=True))
    drained = decided(pods=pods, ray_nodes=(RUNS, STAYS))
    assert [each.pod.name for each in drained if isinstance(each, Drain)] == ["w2"]


def test_what_is_not_ready_or_about_to_be_taken_away_waits_for_nobody() -> None:
    pods = (WORKER, replace(OTHER, node="left", is_ready=False))
    assert len(decided(pods=pods, ray_nodes=(RUNS, STAYS))) == 2
    taken = KubeNode("left", False, (TERMINATION_TAINTS[0],))
    assert len(decided(taken, BOTH, (RUNS, STAYS))) == 2


def test_workers_of_another_cluster_are_nobody_to_wait_for() -> None:
    pods = (*BOTH, replace(OTHER, name="w9", ray_cluster="other"))
    assert decided(pods=pods, ray_nodes=(RUNS, STAYS)) == [GOES]


def replaced(
    *pods: RayPod,
    left: KubeNode = CORDONED,
    replicas: int = 1,
    deleted: tuple[str, ...] = (),
    is_ending: bool = False,
    is_autoscaled: bool = False,
) -> list[Replace]:
    group = WorkerGroup("cpu", GroupSize(replicas, replicas, replicas), deleted)
    cluster = RayCluster("ray", "r", is_ending, is_autoscaled, (group,))
    return replacements({each.name: each for each in (KEPT, left)}, (HEAD, *pods), [cluster], POLICY)


def test_the_only_worker_on_a_node_that_leaves_is_replaced_before_it_is_gone() -> None:
    assert replaced(WORKER) == [Replace("ray", "cpu", 0, ("w1",), ("w1",))]
    assert replaced(WORKER, left=KEPT) == []


def test_a_pod_that_ends_for_another_reason_is_replaced_too() -> None:
    ending = replace(OTHER, is_ending=True)
    assert replaced(ending) == [Replace("ray", "cpu", 0, ("w2",), ("w2",))]


def test_where_all_workers_are_to_leave_one_is_replaced_at_a_time() -> None:
    assert replaced(*BOTH, replicas=2) == [Replace("ray", "cpu", 0, ("w1",), ("w1",))]
    ending, ready = replace(WORKER, is_ending=True), replace(OTHER, name="w3")
    assert replaced(ending, BOTH[1], replace(ready, is_ready=False), replicas=2, deleted=("w1",)) == []
    assert replaced(ending, BOTH[1], ready, replicas=2, deleted=("w1",)) == [
        Replace("ray", "cpu", 0, ("w1", "w2"), ("w2",))
    ]


def test_a_pod_stays_in_the_list_for_as_long_as_it_is_there() -> None:
    ending = replace(WORKER, is_ending=True)
    assert replaced(ending, OTHER, deleted=("w1",)) == []
    both = replaced(ending, replace(OTHER, is_ending=True), deleted=("w0", "w1"))
    assert both == [Replace("ray", "cpu", 0, ("w1", "w2"), ("w2",))]


def test_a_pod_that_is_not_wanted_any_more_is_not_replaced() -> None:
    assert replaced(replace(WORKER, is_ending=True), OTHER, replicas=1) == []


def test_a_cluster_that_ends_or_is_sized_by_rays_autoscaler_gets_no_other_pods() -> None:
    assert replaced(WORKER, is_ending=True) == []
    assert replaced(WORKER, is_autoscaled=True) == []


def test_pods_of_other_groups_and_clusters_do_not_count() -> None:
    assert replaced(replace(WORKER, group="gpu")) == []
    assert replaced(replace(WORKER, ray_cluster="other")) == []


ONE, TWO = GroupSize(1, 1, 1), GroupSize(2, 2, 2)


def resized(
    now: GroupSize, wanted: GroupSize, is_settled: bool = True, is_ending: bool = False, is_autoscaled: bool = False
) -> list[Resize]:
    groups = (WorkerGroup("gpu", ONE, ()), WorkerGroup("cpu", now, ()))
    service = RayService("r", is_settled, {"cpu": wanted, "gpu": ONE, "new": TWO})
    return resizes([service], [RayCluster("ray", "r", is_ending, is_autoscaled, groups)])


def test_a_group_gets_the_size_that_its_ray_service_asks_for() -> None:
    assert resized(ONE, TWO) == [Resize("ray", "cpu", 1, TWO)]
    assert resized(TWO, ONE) == [Resize("ray", "cpu", 1, ONE)]
    assert resized(TWO, TWO) == []


def test_a_cluster_that_ends_or_is_about_to_be_replaced_keeps_its_size() -> None:
    assert resized(TWO, ONE, is_ending=True) == []
    assert resized(TWO, ONE, is_settled=False) == []


def test_a_cluster_of_no_service_or_another_one_keeps_its_size() -> None:
    cluster = RayCluster("ray", "", False, False, (WorkerGroup("cpu", ONE, ()),))
    service = RayService("r", True, {"cpu": TWO})
    assert resizes([service], [cluster, replace(cluster, service="other")]) == []


def test_between_the_bounds_the_size_is_the_autoscalers() -> None:
    asked = GroupSize(1, 1, 4)
    assert resized(GroupSize(3, 1, 4), asked, is_autoscaled=True) == []
    assert resized(GroupSize(3, 1, 4), GroupSize(1, 1, 2), is_autoscaled=True) == [
        Resize("ray", "cpu", 1, GroupSize(2, 1, 2))
    ]
    assert resized(GroupSize(1, 1, 4), GroupSize(2, 2, 4), is_autoscaled=True) == [
        Resize("ray", "cpu", 1, GroupSize(2, 2, 4))
    ]


def test_ray_services_are_read_as_the_api_gives_them() -> None:
    item = ray_service(replicas=2)
    assert parse_ray_service(item) == RayService("r", True, {"cpu": TWO})
    item["status"]["pendingServiceStatus"] = {"rayClusterName": "r-new"}
    assert not parse_ray_service(item).is_settled
    item = ray_service(replicas=2)
    item["metadata"]["generation"] = 4
    assert not parse_ray_service(item).is_settled
    assert parse_ray_service({"metadata": {"name": "r", "generation": 1}}) == RayService("r", False, {})


def test_ray_clusters_are_read_as_the_api_gives_them() -> None:
    item = ray_cluster(replicas=2, deleted=["w1"])
    groups = (WorkerGroup("cpu", TWO, ("w1",)),)
    assert parse_ray_cluster(item) == RayCluster("r-ray", "r", False, False, groups)
    item["spec"]["enableInTreeAutoscaling"] = True
    item["metadata"]["deletionTimestamp"] = "2026-11-27T00:00:00Z"
    assert parse_ray_cluster(item) == RayCluster("r-ray", "r", True, True, groups)
    bare = {"metadata": {"name": "a"}, "spec": {"workerGroupSpecs": [{"groupName": "b"}]}}
    assert parse_ray_cluster(bare) == RayCluster("a", "", False, False, (WorkerGroup("b", GroupSize(0, 0, 0), ()),))


def test_nodes_and_pods_are_read_as_the_api_gives_them() -> None:
    assert parse_node(node("a", unschedulable=True, taints=[{"key": "k", "effect": "NoSchedule"}])) == KubeNode(
        "a", True, ("k",)
    )
    assert parse_node(node("a")) == KubeNode("a", False, ())
    pod = ray_pod("w1", on="a", ip="10.0.0.1")
    pod["metadata"]["uid"] = "u"
    assert parse_pod(pod) == RayPod("w1", "serving", "u", "r-ray", "cpu", False, False, False, "a", "10.0.0.1")
    pod["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    assert (found := parse_pod(pod)) is not None
    assert found.is_ready
    assert parse_pod(pod | {"status": {"phase": "Failed"}}) is None
    assert parse_pod(pod | {"metadata": {**pod["metadata"], "labels": {}}}) is None
