"""Routes of the Responses and Messages APIs."""

from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from peagle.api.dialects.relayed_request import RelayedRequest, to_count, to_message, to_response
from peagle.api.dialects.stream_kinds import COMPLETION, MESSAGE, RESPONSE, StreamKind
from peagle.errors import NotFoundError

# The routes' names of fields that vLLM knows by a chat's names.
RESPONSE_FIELDS: Mapping[str, str] = {
    "max_completion_tokens": "max_output_tokens",
    "max_tokens": "max_output_tokens",
    "response_format": "text.format",
}
MESSAGE_FIELDS: Mapping[str, str] = {
    "max_completion_tokens": "max_tokens",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}


class RelayedRoutes:
    """Handlers for an ingress that reads bodies and calls replicas."""

    _read: Callable[..., Any]
    _ask: Callable[..., Any]

    async def responses(self, request: Request) -> Response:
        """POST /v1/responses"""
        return await self._relay(request, to_response, "responses", "input", RESPONSE_FIELDS, RESPONSE)

    async def messages(self, request: Request) -> Response:
        """POST /v1/messages"""
        return await self._relay(request, to_message, "messages", "messages", MESSAGE_FIELDS, MESSAGE)

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens"""
        return await self._relay(request, to_count, "count_tokens", "messages", MESSAGE_FIELDS, COMPLETION)

    async def _relay(
        self,
        request: Request,
        make: Callable[[dict[str, Any]], RelayedRequest],
        method: str,
        prompt_field: str,
        fields: Mapping[str, str],
        kind: StreamKind,
    ) -> Response:
        body = await self._read(request, make)
        answer: Response = await self._ask(request, body, method, prompt_field, fields=fields, kind=kind)
        return answer

    async def stored_response(self, response_id: str) -> Response:
        """GET, POST and DELETE below /v1/responses: always 404, because no response is stored."""
        raise NotFoundError(
            f"The response {response_id!r} does not exist: this server stores no responses.",
            param="response_id",
            code="response_not_found",
        )
