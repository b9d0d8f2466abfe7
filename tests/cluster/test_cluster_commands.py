"""`peagle cluster` and the permissions of the release's accounts, on a real Kubernetes."""

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from support.kubernetes.release import OWN_VALUES, Release, until

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(900)]

NOBODYS = (
    "get secrets",
    "create pods",
    "create pods --subresource=exec",
    "delete pods",
    "delete nodes",
    "create rolebindings",
)
OF_THE_WATCHER = (
    "list nodes",
    "watch nodes",
    "list pods",
    "watch pods",
    "create pods --subresource=eviction",
    "list rayservices.ray.io",
    "watch rayservices.ray.io",
    "list rayclusters.ray.io",
    "watch rayclusters.ray.io",
    "patch rayclusters.ray.io",
)


@pytest.mark.parametrize("component", ["head", "worker", "drain"])
def test_an_account_may_do_what_it_needs_and_no_more(release: Release, component: str) -> None:
    account = f"system:serviceaccount:{release.namespace}:{release.name}-{component}"

    def may(right: str) -> bool:
        return release.kubectl("auth", "can-i", *right.split(), "--as", account, check=False).startswith("yes")

    assert [right for right in NOBODYS if may(right)] == []
    assert [right for right in OF_THE_WATCHER if may(right)] == (list(OF_THE_WATCHER) if component == "drain" else [])


def test_pods_that_ask_kubernetes_for_nothing_have_no_token(release: Release) -> None:
    for pod in (release.head(), *release.workers()):
        said = release.kubectl("exec", pod, "--", "ls", "/var/run/secrets/kubernetes.io", check=False)
        assert "No such file" in said


def test_status_shows_the_pods_and_the_replica(release: Release) -> None:
    found = release.status()
    assert {each["phase"] for each in found["pods"]} == {"Running"}
    (model,) = found["fleet"]["models"]
    assert model["name"] == "peagle-embedded"
    assert [each["state"] for each in model["replicas"]] == ["ready"]


def test_preflight_passes_where_the_release_runs(release: Release) -> None:
    own = ["--values", OWN_VALUES] if OWN_VALUES else []
    place = ["--chart", str(release.chart), "--namespace", release.namespace, "--release", release.name]
    command = [sys.executable, "-m", "peagle.cli", "cluster", "preflight", "--json", *place, *own]
    printed = subprocess.run(command, capture_output=True, text=True, check=False)
    checks = json.loads(printed.stdout)
    assert [check for check in checks if check["outcome"] == "fail"] == []
    assert len(checks) > 5


def test_a_quota_that_is_too_small_is_told(make_release: Callable[[], Release]) -> None:
    small = make_release()
    small.kubectl("create", "quota", "small", "--hard", "requests.cpu=100m,requests.memory=256Mi")
    small.apply("install")
    until(lambda: "exceeded quota" in small.problems(), "the status names the quota", 120.0)


def test_a_worker_that_fits_no_node_is_told(make_release: Callable[[], Release]) -> None:
    large = make_release()
    values = ("--values", str(large.chart / "values/embedded-cpu.yaml"))
    large.apply(
        "install", *values, "--set", "workerGroups.cpu.cpus=512", "--set-string", "workerGroups.cpu.cpuRequest=512"
    )
    until(lambda: "Insufficient cpu" in large.problems(), "the status says what lacks", 120.0)


def test_an_uninstall_leaves_nothing(make_release: Callable[[], Release]) -> None:
    made = make_release()
    made.apply("install")
    until(lambda: bool(made.workers()), "there is a worker", 120.0)
    made.helm("uninstall", made.name, "--timeout", "5m")
    until(lambda: made.left() == "", "everything is gone", 120.0)
    everywhere = made.kubectl("get", "clusterroles,clusterrolebindings", "--output", "name")
    assert [name for name in everywhere.splitlines() if made.namespace in name] == []
