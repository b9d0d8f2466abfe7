"""The script of `helm test`, run as in the pod, against a server with the part of the API that it uses."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from aiohttp import web

from support.kubernetes.rendered_chart import MINIMAL, NAMESPACE, RELEASE, render
from support.platforms.http_server import serving


@dataclass
class Api:
    """Well from its second answer on; completes with `tokens` tokens."""

    asked: int = 0
    tokens: int = 4
    authorization: str | None = None

    async def tell(self, request: web.Request) -> web.Response:
        self.asked += 1
        if request.path == "/health" and self.asked == 1:
            return web.json_response({"error": {"message": "loading"}}, status=503)
        return web.json_response({"data": [{"id": "small"}, {"id": "large"}]})

    async def complete(self, request: web.Request) -> web.Response:
        self.authorization = request.headers.get("authorization")
        text = f"text of {(await request.json())['model']}"
        return web.json_response({"choices": [{"text": text}], "usage": {"completion_tokens": self.tokens}})


@pytest.fixture
def api() -> Api:
    return Api()


@pytest.fixture
def url(api: Api) -> Iterator[str]:
    app = web.Application()
    app.add_routes([web.get("/{path:.*}", api.tell), web.post("/v1/completions", api.complete)])
    with serving(app) as url:
        yield url


def ask(url: str, timeout_s: float, keys: Path = Path("/nowhere")) -> subprocess.CompletedProcess[str]:
    """Run the pod's own command with another address and other keys, and without its pauses."""
    (container,) = render(MINIMAL).one("Pod", "demo-peagle-test")["spec"]["containers"]
    _, flag, script = container["command"]
    quick = script.replace("POLL_S = 5.0", "POLL_S = 0.01").replace("HINT_AFTER_S = 60.0", "HINT_AFTER_S = 0.02")
    assert quick != script
    quick, script = quick.replace("/etc/peagle/keys", str(keys)), quick
    assert quick != script
    return subprocess.run(
        [sys.executable, flag, quick, url, str(timeout_s), *container["args"][2:]],
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_it_waits_and_asks_every_model(url: str) -> None:
    done = ask(url, 30)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("waiting: ")
    assert done.stdout.splitlines()[-2:] == ["small: 'text of small'", "large: 'text of large'"]


def test_a_service_that_is_not_there_is_explained() -> None:
    done = ask("http://absent.invalid:8000", 0.1)
    assert done.returncode != 0
    assert "networkPolicy.operatorNamespace" in done.stderr
    assert "Traceback" not in done.stderr


def test_an_answer_without_a_token_fails(api: Api, url: str) -> None:
    api.tokens = 0
    done = ask(url, 30)
    assert done.returncode != 0
    assert "small answered without a token" in done.stderr


DIGEST = f"- {{name: b, key_sha256: '{'0' * 64}'}}\n"
YAML = (f"# team a\n---\nkeys:\n{DIGEST}- name: a\n  key: alpha\n", "Bearer alpha")
DIGESTS = (f"keys:\n{DIGEST}", None)


@pytest.mark.parametrize(
    ("text", "sent"),
    [("# team a\n\n  alpha \nbeta\n", "Bearer alpha"), ("two words", "Bearer two words"), ("# a", None), YAML, DIGESTS],
)
def test_it_sends_the_first_key_of_the_file(text: str, sent: str | None, api: Api, url: str, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(text)
    done = ask(url, 30, keys=tmp_path / "keys")
    if sent is None:
        assert (done.returncode, "it has no key" in done.stderr) == (1, True)
    else:
        assert (done.returncode, api.authorization) == (0, sent), done.stderr


def test_a_server_that_never_comes_fails_and_says_how_to_see_why_a_pod_has_no_node() -> None:
    done = ask("http://127.0.0.1:9", 0.2)
    assert done.returncode != 0
    assert "not healthy" in done.stderr.splitlines()[0]
    for said in (done.stderr, done.stdout):
        assert said.count("stays Pending") == 1
        assert f"kubectl describe pods -n {NAMESPACE} -l app.kubernetes.io/instance={RELEASE}" in said
        assert f"peagle cluster status --release {RELEASE} -n {NAMESPACE}" in said
    assert "Traceback" not in done.stderr
