"""Loss of a head while an external Redis keeps the state of the Ray cluster."""

import json
import os
from collections.abc import Callable

import pytest

from support.kubernetes.release import Release, until

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(1800)]

REDIS = os.environ.get("PEAGLE_TEST_REDIS_IMAGE")


def redis() -> str:
    labels = {"app": "redis"}
    command = ["redis-server", "--protected-mode", "no", "--dir", "/tmp"]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "redis", "labels": labels},
        "spec": {"containers": [{"name": "redis", "image": REDIS, "command": command}]},
    }
    ports = [{"port": 6379}]
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "redis"},
        "spec": {"selector": labels, "ports": ports},
    }
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod, service]})


@pytest.mark.skipif(REDIS is None, reason="PEAGLE_TEST_REDIS_IMAGE names no image of Redis")
def test_the_head_is_killed_and_the_replica_serves_on(make_release: Callable[[], Release]) -> None:
    release = make_release()
    release.kubectl("apply", "--filename", "-", given=redis())
    release.apply("install", "--set", "gcs.store=external,gcs.external.address=redis:6379")
    release.wait_until_running()
    release.test()
    before = release.workers()
    with release.load("one worker, head killed, Redis") as load:
        head = release.head()
        release.kill(head)
        until(lambda: bool(release.ready("head") - {head}), "there is another head", 300.0)
        release.test()
    assert release.workers() == before
    assert load.unanswered == []
    # What went through the proxy of the head.
    assert load.longest_gap_s < 30.0
