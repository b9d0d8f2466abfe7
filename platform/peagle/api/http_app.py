"""The FastAPI application to which Ray Serve binds an ingress."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse

from peagle.api.api_settings import ApiSettings
from peagle.api.clients.keys import KeyCheck
from peagle.api.dialects.anthropic_errors import AnthropicErrors
from peagle.api.dialects.plain_requests import PlainRequests
from peagle.api.ledger import Ledger
from peagle.api.loop_watch import watch_loop
from peagle.api.middleware import REQUEST_ID, Guard
from peagle.api.openai_errors import describe
from peagle.api.reply import from_status
from peagle.errors import PeagleError
from peagle.router.fairness.limit_headers import NAMES as LIMIT_HEADERS

# Cohere's and Jina's names of one route, and vLLM's name of another.
RERANK = ("/v1/rerank", "/v2/rerank", "/rerank")
SCORE = ("/v1/score", "/score")
# Routes of OpenAI's and vLLM's servers for models that do not generate text.
NOT_GENERATED = (
    *("/pooling", "/classify"),
    *("/v1/moderations", "/v1/audio/transcriptions", "/v1/audio/translations", "/v1/audio/speech"),
    "/v1/images/generations",
)

# The ingress method of each route, in the form that `make_fastapi_ingress` takes.
ENDPOINTS: dict[str, Callable[[FastAPI], Callable[..., Any]]] = {
    "models": lambda app: app.get("/v1/models"),
    "model_data": lambda app: app.get("/v1/models/{model:path}"),
    "chat": lambda app: app.post("/v1/chat/completions"),
    "completions": lambda app: app.post("/v1/completions"),
    "responses": lambda app: app.post("/v1/responses"),
    "stored_response": lambda app: app.api_route("/v1/responses/{response_id:path}", methods=["GET", "POST", "DELETE"]),
    "messages": lambda app: app.post("/v1/messages"),
    "count_tokens": lambda app: app.post("/v1/messages/count_tokens"),
    "embeddings": lambda app: app.post("/v1/embeddings"),
    "rerank": lambda app: _all(app.post(path) for path in RERANK),
    "score": lambda app: _all(app.post(path) for path in SCORE),
    "not_generated": lambda app: _all(app.post(path) for path in NOT_GENERATED),
    "tokenize": lambda app: app.post("/tokenize"),
    "detokenize": lambda app: app.post("/detokenize"),
    "invocations": lambda app: app.post("/invocations"),
    "ping": lambda app: app.get("/ping"),
    "health": lambda app: app.get("/health"),
    "ready": lambda app: app.get("/health/ready"),
    "live": lambda app: app.get("/health/live"),
    "metrics": lambda app: app.get("/metrics"),
    "version": lambda app: app.get("/version"),
    "fleet": lambda app: app.get("/fleet"),
    "usage": lambda app: app.get("/fleet/usage"),
    "count": lambda app: app.put("/fleet/metrics"),
    "depth": lambda app: app.get("/fleet/replicas/{replica}/depth"),
    "limit_depth": lambda app: app.put("/fleet/replicas/{replica}/depth"),
    "unlimit_depth": lambda app: app.delete("/fleet/replicas/{replica}/depth"),
    "limit_model_depth": lambda app: app.put("/fleet/models/{model:path}/depth"),
    "unlimit_model_depth": lambda app: app.delete("/fleet/models/{model:path}/depth"),
    "console": lambda app: app.get("/"),
    "console_file": lambda app: app.get("/console/page/{name}"),
    "console_status": lambda app: app.get("/console/status"),
}


def _all(decorators: Iterable[Callable[..., Any]]) -> Callable[..., Any]:
    """Return one decorator that binds a handler to several routes."""
    several = tuple(decorators)

    def bind(handler: Callable[..., Any]) -> Callable[..., Any]:
        for decorator in several:
            decorator(handler)
        return handler

    return bind


def build_http(settings: ApiSettings) -> FastAPI:
    """Return the application without its routes, which are methods of the ingress bound by `ENDPOINTS`."""
    app = FastAPI(
        title="peagle",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        lifespan=_watched if settings.metrics else None,
    )
    app.state.settings = settings
    app.state.ledger = Ledger()
    app.add_exception_handler(HTTPException, answer_http)
    app.add_exception_handler(RequestValidationError, answer)
    app.add_exception_handler(PeagleError, answer)
    if settings.keys_file is not None:
        app.add_middleware(KeyCheck, keys_file=settings.keys_file)
    # Middleware added last is outermost: CORS headers are also on the guard's answers, so that a browser can read them.
    app.add_middleware(Guard, counts=settings.metrics)
    app.add_middleware(AnthropicErrors)
    app.add_middleware(PlainRequests)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID, "retry-after", *LIMIT_HEADERS],
        )
    return app


@asynccontextmanager
async def _watched(app: FastAPI) -> AsyncIterator[None]:
    """Measure the delay of the application's event loop while the application runs."""
    ledger: Ledger = app.state.ledger
    watching = asyncio.create_task(watch_loop(ledger.metrics.stalled), name="loop watch")
    try:
        yield
    finally:
        watching.cancel()


async def answer(request: Request, error: Exception) -> JSONResponse:
    """Answer an expected exception with OpenAI's error object."""
    return describe(error, request.app.state.settings.retry_after_s).response()


async def answer_http(request: Request, error: Exception) -> JSONResponse:
    """Answer Starlette's own errors, with OpenAI's wording for common ones."""
    assert isinstance(error, HTTPException)
    url = f"{request.method} {request.url.path}"
    match error.status_code, error.detail:
        case 404, "Not Found":
            return from_status(404, f"Unknown request URL: {url}.", code="unknown_url").response()
        case 405, _:
            message = f"{url} is not allowed; allowed: {(error.headers or {}).get('Allow', 'another method')}."
            return from_status(405, message, code="method_not_allowed", headers=error.headers).response()
        case _:
            return describe(error).response()
