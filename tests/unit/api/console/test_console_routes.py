"""The page, its headers, and the figures that it polls, by real ASGI calls; the fleet's answers are a sample."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import httpx
import pytest

from peagle.api.api_settings import ApiSettings
from peagle.api.console import console_routes
from peagle.api.console.console_routes import ASK_S_MAX, ConsoleRoutes, page_files
from peagle.api.http_app import ENDPOINTS, build_http
from peagle.api.http_metrics import Scrape
from peagle.api.scraping import LEAST_S
from support.observe.metrics_sample import MODEL, whole_scrape

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
FILES_LINES_MAX = 400
MARKUP_OR_CODE_FROM_TEXT = (
    r"(?i)innerHTML|outerHTML|insertAdjacentHTML|createContextualFragment|setHTML|parseFromString|srcdoc|"
    r"document\.write|javascript:|\beval\(|new Function|setTimeout\(\s*[\"'`]"
)


class Routes(ConsoleRoutes):
    def __init__(self) -> None:
        self._deployments = {}
        self.scrapes = 0
        self.timeouts_s: list[float] = []

    async def scrape(self, timeout_s: float) -> Scrape:
        self.scrapes += 1
        self.timeouts_s.append(timeout_s)
        await asyncio.sleep(0)
        return whole_scrape()


@asynccontextmanager
async def client(routes: Routes | None = None, **settings: Any) -> AsyncIterator[httpx.AsyncClient]:
    routes = routes or Routes()
    app = build_http(ApiSettings(**settings))
    for name in ("console", "console_file", "console_status"):
        ENDPOINTS[name](app)(getattr(routes, name))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as http:
        yield http


@pytest.mark.parametrize("path", ["/", "/console/page/console.js", "/console/page/console.css", "/console/status"])
async def test_every_answer_restricts_the_browser_to_this_server(path: str) -> None:
    async with client() as http:
        answer = await http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize(
    ("path", "kind"),
    [("/", "text/html"), ("/console/page/console.js", "text/javascript"), ("/console/page/console.css", "text/css")],
)
async def test_a_browser_caches_a_file_and_revalidates_it(path: str, kind: str) -> None:
    async with client() as http:
        first = await http.get(path)
        again = await http.get(path, headers={"if-none-match": first.headers["etag"]})
        other = await http.get(path, headers={"if-none-match": '"other"'})
    assert first.headers["content-type"] == f"{kind}; charset=utf-8"
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")
    assert other.content == first.content


@pytest.mark.parametrize("name", ["nothing.js", "console_routes.py", "..%2Fconsole_routes.py", "..%2F..%2Fkeys.py"])
async def test_no_other_file_is_served(name: str) -> None:
    async with client() as http:
        answer = await http.get(f"/console/page/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_url"


def test_the_page_is_small_loads_only_its_own_files_and_has_no_inline_code() -> None:
    texts = {name: data.decode() for name, (data, _, _) in page_files().items()}
    assert {name for name, text in texts.items() if len(text.splitlines()) > FILES_LINES_MAX} == set()
    page = texts["index.html"]
    assert set(re.findall(r'(?:src|href)="(?!data:|#)([^"]+)"', page)) == {
        "console/page/console.css",
        "console/page/console.js",
    }
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?![^>]*\bsrc=)", page)
    imported = {file for text in texts.values() for file in re.findall(r'from "\./([^"]+)"', text)}
    assert imported <= set(texts)
    assert imported | {"index.html", "console.css", "console.js"} == set(texts)
    for text in texts.values():
        assert not re.search(MARKUP_OR_CODE_FROM_TEXT, text)
        assert not re.search(r"localStorage|document\.cookie|indexedDB", text)
        assert set(re.findall(r"https?://[^\s\"'<>]+", text)) <= {"http://www.w3.org/2000/svg"}


async def test_figures_are_not_cached_and_have_a_time() -> None:
    async with client() as http:
        answer = await http.get("/console/status")
    assert answer.headers["cache-control"] == "no-store"
    figures = answer.json()
    assert figures["at_s"] > 0
    assert [row["name"] for row in figures["models"]] == [MODEL]


async def test_many_open_pages_cost_the_replicas_one_answer() -> None:
    routes = Routes()
    async with client(routes) as http:
        answers = await asyncio.gather(*(http.get("/console/status") for _ in range(20)))
    assert routes.scrapes == 1
    assert len({answer.content for answer in answers}) == 1


async def test_figures_arrive_before_a_page_stops_waiting_even_if_a_replica_hangs() -> None:
    page_waits = re.search(r"AbortSignal.timeout\(([\d_]+)\)", page_files()["server.js"][0].decode())
    assert page_waits is not None
    for probe_timeout_s, expected_s in ((60.0, ASK_S_MAX), (0.5, 0.5)):
        routes = Routes()
        async with client(routes, probe_timeout_s=probe_timeout_s) as http:
            await http.get("/console/status")
        assert routes.timeouts_s == [expected_s]
    # The other ingress processes are asked last, and get a little time even then.
    assert int(page_waits[1]) / 1000 > 2 * ASK_S_MAX + LEAST_S


async def test_polls_share_a_scrape_that_is_in_progress_even_if_its_first_page_disconnects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Hangs(Routes):
        def __init__(self) -> None:
            super().__init__()
            self.asked, self.answered = asyncio.Event(), asyncio.Event()

        async def scrape(self, timeout_s: float) -> Scrape:
            scrape = await super().scrape(timeout_s)
            self.asked.set()
            await self.answered.wait()
            return scrape

    routes = Hangs()
    monkeypatch.setattr(console_routes, "SHARED_S", 0.0)
    async with client(routes) as http:
        left = asyncio.create_task(http.get("/console/status"))
        waits = asyncio.create_task(http.get("/console/status"))
        async with asyncio.timeout(10):
            await routes.asked.wait()
        left.cancel()
        await asyncio.gather(left, return_exceptions=True)
        late = asyncio.create_task(http.get("/console/status"))
        await asyncio.sleep(0.05)
        assert not waits.done()
        assert not late.done()
        routes.answered.set()
        assert [answer.status_code for answer in await asyncio.gather(waits, late)] == [200, 200]
        assert routes.scrapes == 1
        assert (await http.get("/console/status")).status_code == 200
    assert routes.scrapes == 2


async def test_replicas_are_not_asked_as_part_of_the_poll_that_came_first() -> None:
    """Serve cancels a request's calls when the request is cancelled."""
    request, seen = ContextVar("request", default="none"), []

    class Looks(Routes):
        async def scrape(self, timeout_s: float) -> Scrape:
            seen.append(request.get())
            return await super().scrape(timeout_s)

    request.set("first")
    async with client(Looks()) as http:
        assert (await http.get("/console/status")).status_code == 200
    assert seen == ["none"]


async def test_a_failed_scrape_is_repeated_for_the_next_poll() -> None:
    class Fails(Routes):
        async def scrape(self, timeout_s: float) -> Scrape:
            if not self.scrapes:
                self.scrapes += 1
                raise RuntimeError("gone")
            return await super().scrape(timeout_s)

    routes = Fails()
    async with client(routes) as http:
        assert (await http.get("/console/status")).status_code == 500
        assert (await http.get("/console/status")).status_code == 200


async def test_with_keys_the_page_loads_and_its_figures_ask_for_one(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-known\n", encoding="utf-8")
    async with client(keys_file=str(keys)) as http:
        assert (await http.get("/")).status_code == 200
        assert (await http.get("/console/page/console.js")).status_code == 200
        for headers in ({}, {"authorization": "Bearer sk-other"}):
            for path in ("/console/status", "/console/status/"):
                answer = await http.get(path, headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
        known = await http.get("/console/status", headers={"authorization": "Bearer sk-known"})
    assert known.status_code == 200
    assert "sk-" not in known.text
