from collections.abc import AsyncIterator

import pytest

from support.kubernetes.kubernetes_api import KubernetesApi
from support.kubernetes.preflight_cluster import ready_cluster


@pytest.fixture
async def server() -> AsyncIterator[KubernetesApi]:
    async with ready_cluster() as serving:
        yield serving
