"""Several ingress processes on real Ray Serve: one scrape speaks for all of them. No engine is needed for that."""

import re
import time
from collections import Counter
from collections.abc import Iterator

import httpx
import pytest
from ray import serve
from ray.llm._internal.serve.core.ingress.ingress import make_fastapi_ingress

from peagle.api.api_settings import ApiSettings
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.api.ingress import PeagleIngress
from support.local_ray import local_ray
from support.served import free_port

pytestmark = [pytest.mark.slow, pytest.mark.platform, pytest.mark.timeout(300)]

INGRESSES, ASKED = 2, 20
PATIENCE_S = 60.0
_COUNTED = re.compile(r'^peagle_http_requests_total\{ingress="([^"]+)",[^}]*route="/version"[^}]*\} (\S+)$', re.M)


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    port = free_port()
    with local_ray():
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        ingress = make_fastapi_ingress(PeagleIngress, endpoint_map=ENDPOINTS, app=build_http(ApiSettings()))
        serve.run(serve.deployment(ingress, name="Ingress", num_replicas=INGRESSES).bind({}, {}), name="ingresses")
        yield f"http://127.0.0.1:{port}"


def counted(url: str) -> Counter[str]:
    """Requests for the version, by the ingress process that says it answered them."""
    found = _COUNTED.findall(httpx.get(f"{url}/metrics").raise_for_status().text)
    return Counter({ingress: int(float(count)) for ingress, count in found})


def test_a_scrape_hears_every_ingress_process(url: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    before = counted(url)
    for _ in range(ASKED):
        httpx.get(f"{url}/version").raise_for_status()
    while not (len(after := counted(url)) == INGRESSES and (after - before).total() == ASKED):
        assert time.monotonic() < deadline, (before, after)
        time.sleep(0.5)
    assert all(counted(url) == after for _ in range(8))

    paused = httpx.put(f"{url}/fleet/metrics", json={"counting": False}).raise_for_status().json()
    assert paused == {"counting": False, "ingresses": INGRESSES, "replicas": {}}
    for _ in range(ASKED):
        httpx.get(f"{url}/version").raise_for_status()
    assert counted(url) == after
    httpx.put(f"{url}/fleet/metrics", json={"counting": True}).raise_for_status()
    httpx.get(f"{url}/version").raise_for_status()
    assert (counted(url) - after).total() == 1
