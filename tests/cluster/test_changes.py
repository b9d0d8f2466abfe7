"""Effects of a `helm upgrade` on a serving release, and its rollback."""

import json

import pytest

from support.kubernetes.release import Release, run, until

pytestmark = [pytest.mark.slow, pytest.mark.cluster, pytest.mark.timeout(3600)]

CHANGED_TIMEOUT_S = 900.0


def test_an_image_that_is_not_there_is_told_and_mended(release: Release) -> None:
    with release.load("an image that is not there, and back") as load:
        release.apply("upgrade", "--set", "image.tag=absent")
        until(lambda: "ImagePull" in release.problems(), "a pod says that its image is missing", 120.0, every_s=5.0)
        release.helm("rollback", release.name)
        # KubeRay makes another cluster, though the one that runs is what is asked for, and deletes the old one later.
        missing = lambda: "ImagePull" in release.problems() or len(release.workers()) > 1  # noqa: E731
        until(lambda: not missing(), "one worker is there, with its image", 2 * CHANGED_TIMEOUT_S, every_s=15.0)
    assert load.lost == []
    assert "peagle-embedded: " in release.test()


def test_keys_are_asked_for_once_there_is_a_secret(release: Release) -> None:
    release.kubectl("create", "secret", "generic", "keys", "--from-literal", "keys=alpha")
    release.apply("upgrade", "--set", "apiKeys.existingSecret=keys")
    until(lambda: "401" in release.ask("/v1/models"), "a request without a key is refused", CHANGED_TIMEOUT_S)
    assert "peagle-embedded: " in release.test()
    release.helm("rollback", release.name)
    until(lambda: '"data"' in release.ask("/v1/models"), "a request needs no key", CHANGED_TIMEOUT_S)


def test_a_model_is_changed_and_changed_back(release: Release) -> None:
    values = ("--values", str(release.chart / "values/embedded-cpu.yaml"))
    release.apply("upgrade", *values, "--set", "models.embedded.deployment.name=another")
    until(lambda: "another" in release.ask("/v1/models"), "the other model is served", CHANGED_TIMEOUT_S)
    assert "another: " in release.test()
    release.helm("rollback", release.name)
    until(lambda: "peagle-embedded" in release.ask("/v1/models"), "the first model is served", CHANGED_TIMEOUT_S)
    assert "peagle-embedded: " in release.test()


def test_the_operator_is_restarted_and_nobody_notices(release: Release) -> None:
    before = release.pods()
    with release.load("operator restarted") as load:
        selector = ("--selector", "app.kubernetes.io/name=kuberay-operator")
        (operator,) = json.loads(run("kubectl", "get", "pods", "--all-namespaces", *selector, "--output", "json"))[
            "items"
        ]
        place = ("--namespace", operator["metadata"]["namespace"])
        run("kubectl", *place, "delete", "pod", operator["metadata"]["name"])
        run("kubectl", *place, "wait", "pod", *selector, "--for", "condition=Ready", "--timeout", "120s")
        until(release.is_running, "the RayService runs", 120.0)
    assert load.lost == []
    assert before <= release.pods()
