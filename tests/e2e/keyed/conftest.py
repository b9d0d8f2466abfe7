"""A platform that requires API keys, and traces every request that its client does not exclude."""

import signal
from collections.abc import Iterator

import pytest
import yaml

from support.engines.pooling_models import write_embedding_model
from support.observe.trace_collector import Collector, collecting
from support.platforms.served import Served, Stop, up, write_deployment

KEYS = """keys:
- {name: few, key: sk-few}
- {name: many, key: sk-many}
- {name: heavy, key: sk-heavy, weight: 3}
- {name: embeds, key: sk-embeds}
- {name: bounded, key: sk-bounded, limits: {requests_per_minute: 2}}
"""
EMBEDS = {
    "name": "embeds",
    "engine": {"runner": "pooling", "enforce_eager": True, "max_num_seqs": 8, "kv_cache_memory_bytes": 2**24},
    "resources": {"accelerator": "cpu"},
}
# Fixed K: the same number of tokens per request and step at any load.
STATIC = {"adaptive": False}


@pytest.fixture(scope="package")
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


@pytest.fixture(scope="package")
def keyed(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Served]:
    """A platform with a choice of replicas, and an embedding model next to the generating one."""
    folder = tmp_path_factory.mktemp("keyed")
    keys = folder / "keys.yaml"
    keys.write_text(KEYS, encoding="utf-8")
    deployment = write_deployment(
        folder, engine={"enforce_eager": True}, replicas={"min": 1, "max": 2}, speculation=STATIC
    )
    embeds = folder / "embeds.yaml"
    embeds.write_text(yaml.safe_dump({**EMBEDS, "target": {"source": str(write_embedding_model(folder / "embeds"))}}))
    stop = Stop(signal.SIGINT, whole_group=True)
    arguments = ["--traces-to", collector.url, "--keys-file", str(keys), str(embeds)]
    with up(folder, deployment, arguments=arguments, stop=stop) as platform:
        yield platform
