"""A platform with two replicas of the embedded model."""

from collections.abc import Iterator

import pytest

from support.platforms.served import Served, up, write_deployment

REPLICAS = 2


@pytest.fixture(scope="package")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    # float32: in bfloat16 a batch's size can turn a close choice, and texts are compared.
    deployment = write_deployment(
        folder,
        engine={"enforce_eager": True, "dtype": "float32"},
        replicas={"min": REPLICAS, "max": REPLICAS},
        resources={"cpus": 1},
    )
    with up(folder, deployment, REPLICAS) as platform:
        yield platform
