"""The console: a page with live figures of the fleet and a playground, and the route that it polls.

The page holds no data, so it loads without an API key. The figures require a key if keys are on: unlike `/fleet` they
are meant for browsers on other machines. They hold nothing that `/metrics` does not, except the reason for K.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Mapping
from contextvars import Context
from functools import cache
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

import peagle
from peagle.api.api_settings import ApiSettings
from peagle.api.console.fleet_figures import model_rows
from peagle.api.scraping import MetricsRoutes
from peagle.config import Deployment

INDEX = "index.html"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
_FOLDER = Path(__file__).parent / "page"

CONTENT_POLICY = "; ".join(
    (
        *("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "img-src 'self' data:"),
        *("frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"),
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}

SHARED_S = 1.0
"""Age up to which figures answer further polls, so that many open pages cost the replicas as much as one page."""

ASK_S_MAX = 4.0
"""Longest wait for one process. An answer may take two waits in a row, and a page waits 10 s for it."""


@cache
def page_files() -> Mapping[str, tuple[bytes, str, str]]:
    """Content, media type and entity tag of each file of the page, by name."""
    files = {path.name: (path.read_bytes(), _TYPES[path.suffix]) for path in _FOLDER.iterdir() if path.suffix in _TYPES}
    return {name: (data, kind, f'"{hashlib.sha256(data).hexdigest()[:32]}"') for name, (data, kind) in files.items()}


def _is_over(figures: asyncio.Task[bytes], age_s: float) -> bool:
    return figures.done() and (age_s > SHARED_S or figures.cancelled() or figures.exception() is not None)


class ConsoleRoutes(MetricsRoutes):
    """Handlers of `/`, `/console/page/{name}` and `/console/status`, for an ingress."""

    _deployments: dict[str, Deployment]
    _figures: asyncio.Task[bytes] | None = None
    _figures_at_s: float = 0.0

    async def console(self, request: Request) -> Response:
        """GET /: the page."""
        return await self.console_file(request, INDEX)

    async def console_file(self, request: Request, name: str) -> Response:
        """GET /console/page/{name}: a file that the page loads."""
        if name not in page_files():
            raise HTTPException(404)
        data, kind, tag = page_files()[name]
        # A browser revalidates its copy each time, because another release may have replaced the file.
        headers = {**HEADERS, "Cache-Control": "no-cache", "ETag": tag}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=f"{kind}; charset=utf-8", headers=headers)

    async def console_status(self, request: Request) -> Response:
        """GET /console/status: models and replicas with their load, depths, acceptance and latencies."""
        now_s = time.monotonic()
        if self._figures is None or _is_over(self._figures, now_s - self._figures_at_s):
            self._figures_at_s = now_s
            # A page that disconnects must not cancel the answer that other pages wait for. Serve would cancel the calls
            # that are made in its request's context.
            asking = self._ask_for_figures(request.app.state.settings)
            self._figures = asyncio.create_task(asking, name="figures", context=Context())
        data = await asyncio.shield(self._figures)
        return Response(data, media_type="application/json", headers={**HEADERS, "Cache-Control": "no-store"})

    async def _ask_for_figures(self, settings: ApiSettings) -> bytes:
        rows = model_rows(await self.scrape(min(settings.probe_timeout_s, ASK_S_MAX)), self._deployments)
        figures = {"version": peagle.__version__, "at_s": time.time(), "counts": settings.metrics, "models": rows}
        return json.dumps(figures, separators=(",", ":")).encode()
