"""The release that the Kubernetes tests share: each test leaves it as it was, with one serving worker."""

import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from support.kubernetes.release import Release, prepared_chart, run

NAME = "peagle"
NAMESPACE = os.environ.get("PEAGLE_TEST_NAMESPACE")


@pytest.fixture(scope="session")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_chart(tmp_path_factory.mktemp("chart"))


@contextmanager
def _release(chart: Path) -> Iterator[Release]:
    made = Release(chart, NAME, f"test-{uuid.uuid4().hex[:6]}")
    run("kubectl", "create", "namespace", made.namespace)
    try:
        yield made
    finally:
        made.helm("uninstall", made.name, "--ignore-not-found", "--timeout", "5m", check=False)
        run("kubectl", "delete", "namespace", made.namespace, "--timeout", "300s", check=False)


@pytest.fixture
def make_release(chart: Path) -> Iterator[Callable[[], Release]]:
    """Namespaces for releases that are not installed yet; the test's end takes all of them away."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(_release(chart))


@pytest.fixture(scope="session")
def release(chart: Path) -> Iterator[Release]:
    """The chart's default values, installed and asked for the first tokens; or the one that is there, which stays."""
    if NAMESPACE:
        yield Release(chart, NAME, NAMESPACE)
        return
    with _release(chart) as made:
        began_s = time.monotonic()
        made.apply("install")
        made.wait_until_running()
        assert "peagle-embedded: " in made.test()
        print(f"from helm install to the first token: {time.monotonic() - began_s:.0f} s")
        yield made
