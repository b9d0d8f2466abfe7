import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from support.platforms.haproxy_front import echo, listening


@pytest.fixture
async def ingress() -> AsyncIterator[int]:
    async with listening(echo) as port:
        yield port


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as `peagle serve` uses for HAProxy's files: pytest's are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="peagle-", dir="/tmp") as name:
        yield Path(name)
