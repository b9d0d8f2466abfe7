"""A platform that asks for API keys, and traces whatever its client does not decline."""

import signal
from collections.abc import Iterator

import pytest

from support.served import Served, Stop, up, write_deployment
from support.trace_collector import Collector, collecting

KEYS = """keys:
- {name: few, key: sk-few}
- {name: many, key: sk-many}
- {name: heavy, key: sk-heavy, weight: 3}
- {name: bounded, key: sk-bounded, limits: {requests_per_minute: 2}}
"""
# So many tokens of each request in a step, whatever the load.
STATIC = {"adaptive": False}


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="package")
def keyed(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Served]:
    """Its dispatcher may have a choice."""
    folder = tmp_path_factory.mktemp("keyed")
    keys = folder / "keys.yaml"
    keys.write_text(KEYS, encoding="utf-8")
    deployment = write_deployment(
        folder, engine={"enforce_eager": True}, replicas={"min": 1, "max": 2}, speculation=STATIC
    )
    stop = Stop(signal.SIGINT, whole_group=True)
    arguments = ["--traces-to", collector.url, "--keys-file", str(keys)]
    with up(folder, deployment, arguments=arguments, stop=stop) as platform:
        yield platform
