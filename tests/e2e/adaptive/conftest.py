"""A platform with one replica of adaptive depth, whose steps are timed before it serves."""

import signal
from collections.abc import Iterator

import pytest

from support.platforms.served import Served, Stop, up, write_deployment


@pytest.fixture(scope="package")
def adaptive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("adaptive")
    speculation = {"calibration_s": 30.0}
    deployment = write_deployment(folder, engine={"enforce_eager": True}, speculation=speculation)
    with up(folder, deployment, stop=Stop(signal.SIGINT)) as platform:
        yield platform
