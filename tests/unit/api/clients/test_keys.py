"""API keys through the real application, with real ASGI calls and a real keys file."""

import os
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from peagle.api.api_settings import ApiSettings
from peagle.api.clients.keys import REREAD_S, Keys, check_keys
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.errors import ConfigError
from peagle.router.fairness.client_terms import Client


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# team a\nalpha\n\n beta \n")
    return path


def client(keys_file: Path | None) -> httpx.AsyncClient:
    app: FastAPI = build_http(ApiSettings(keys_file=None if keys_file is None else str(keys_file)))

    async def answer() -> dict[str, bool]:
        return {"ok": True}

    for path in ("/v1/models", "/tokenize", "/invocations", "/health", "/ping", "/metrics", "/fleet"):
        app.get(path)(answer)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


async def test_keys_hold_below_a_route_prefix(keys_file: Path) -> None:
    app = build_http(ApiSettings(keys_file=str(keys_file)))
    app.get("/v1/models")(lambda: {"ok": True})
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app, root_path="/llm"), base_url="http://test/llm/"
    ) as http:
        assert (await http.get("v1/models")).status_code == 401
        assert (await http.get("v1/models", headers={"Authorization": "Bearer alpha"})).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer alpha"},
        {"Authorization": "Bearer beta"},
        {"Authorization": "bearer alpha"},
        # Sent like Anthropic's clients.
        {"x-api-key": "alpha"},
        {"x-api-key": "alpha", "authorization": "Basic bad"},
        {"x-api-key": "gamma", "authorization": "Bearer alpha"},
    ],
)
async def test_a_known_key_is_admitted(keys_file: Path, headers: dict[str, str]) -> None:
    async with client(keys_file) as http:
        assert (await http.get("/v1/models", headers=headers)).status_code == 200
        assert (await http.get("/v1/models", headers={"x-api-key": "gamma"})).status_code == 401


@pytest.mark.parametrize(
    "sent", ["Bearer gamma", "Bearer ", "Bearer", "Basic alpha", "alpha", "Bearer # team a", "Bearer alph", "Bearer ä"]
)
@pytest.mark.parametrize("path", ["/v1/models", "/tokenize", "/invocations"])
async def test_anything_else_is_a_401_in_openai_s_form(keys_file: Path, sent: str, path: str) -> None:
    async with client(keys_file) as http:
        answer = await http.get(path, headers={"Authorization": sent.encode("latin-1")})
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.headers["x-request-id"]
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert "gamma" not in answer.text


async def test_no_key_is_told_what_to_send(keys_file: Path) -> None:
    async with client(keys_file) as http:
        answer = await http.get("/v1/models")
    assert answer.status_code == 401
    assert "Authorization: Bearer" in answer.json()["error"]["message"]


async def test_whatever_asks_a_model_for_something_needs_a_key(keys_file: Path) -> None:
    app: FastAPI = build_http(ApiSettings(keys_file=str(keys_file)))

    async def answer() -> dict[str, bool]:
        return {"ok": True}

    for bind in ENDPOINTS.values():
        bind(app)(answer)
    paths = [route.path for route in app.routes if "POST" in route.methods]  # type: ignore[attr-defined]
    assert {"/v1/embeddings", "/v2/rerank", "/rerank", "/score"} < set(paths)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        assert {path: (await http.post(path)).status_code for path in paths} == dict.fromkeys(paths, 401)


@pytest.mark.parametrize("path", ["/health", "/ping", "/metrics", "/fleet"])
async def test_probes_and_operators_need_no_key(keys_file: Path, path: str) -> None:
    async with client(keys_file) as http:
        assert (await http.get(path)).status_code == 200


async def test_without_a_file_anybody_may_ask_and_a_missing_one_admits_nobody(tmp_path: Path) -> None:
    for file, status in ((None, 200), (tmp_path / "absent", 401)):
        async with client(file) as http:
            assert (await http.get("/v1/models", headers={"Authorization": "Bearer alpha"})).status_code == status


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf\n  \n# no key\n"])
def test_a_file_that_admits_nobody_is_named_before_a_server_starts(content: bytes, keys_file: Path) -> None:
    check_keys(keys_file)
    keys_file.write_bytes(content)
    with pytest.raises(ConfigError, match="it has no key"):
        check_keys(keys_file)
    with pytest.raises(ConfigError, match="it cannot be read: No such file"):
        check_keys(keys_file.with_name("absent"))


async def test_an_empty_line_is_no_key(keys_file: Path) -> None:
    assert await Keys(keys_file).owner("") is None


def write(path: Path, content: str) -> None:
    """Replace the file, like an update of a mounted secret."""
    successor = path.with_name("next")
    successor.write_text(content)
    os.replace(successor, path)


async def test_a_key_that_is_withdrawn_or_added_counts_soon(keys_file: Path) -> None:
    now_s = 0.0
    keys = Keys(keys_file, now_s=lambda: now_s)
    assert await keys.owner("alpha")
    write(keys_file, "gamma\n")
    assert await keys.owner("alpha")
    now_s = REREAD_S
    assert not await keys.owner("alpha")
    assert await keys.owner("gamma")


async def test_a_file_that_has_become_wrong_leaves_the_last_good_keys_in_force(
    keys_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 0.0
    keys = Keys(keys_file, now_s=lambda: now_s)
    assert await keys.owner("alpha")
    write(keys_file, "keys:\n- name: team-a\n  key: sk-secret\n  weight: heavy\n")
    for _ in range(3):
        now_s += REREAD_S
        assert await keys.owner("alpha")
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "line 4: weight = 'heavy': it must be a number" in caplog.text
    assert "sk-secret" not in caplog.text
    write(keys_file, "keys:\n- name: team-a\n  key: sk-secret\n  weight: 2\n")
    now_s += REREAD_S
    assert await keys.owner("alpha") is None
    assert await keys.owner("sk-secret") == Client("team-a", 2.0)
    os.unlink(keys_file)
    now_s += REREAD_S
    assert await keys.owner("sk-secret")


async def test_a_key_is_the_bytes_of_its_line(keys_file: Path) -> None:
    write(keys_file, "\ufeffschlüssel\n")  # with a byte order mark, as some editors write it
    async with client(keys_file) as http:
        sent = "Bearer schlüssel".encode()
        assert (await http.get("/v1/models", headers={"Authorization": sent})).status_code == 200
