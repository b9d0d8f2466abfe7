"""Routes of models that embed or score text, and errors for requests to the wrong kind of model."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from peagle.api.bounds.pooled_bounds import check_pooled
from peagle.api.dialects.pooled_request import PooledRequest, to_embeddings, to_rerank, to_score
from peagle.config import Deployment
from peagle.errors import RequestError

# Replica methods that embed or score.
POOLED = frozenset({"embeddings", "score"})

_GENERATING = "text only: use /v1/chat/completions, /v1/completions, /v1/responses or /v1/messages."
_POOLING = "text only: use /v1/embeddings, /v1/rerank or /v1/score."
_CODE = "unsupported_operation"


class PoolingRoutes:
    """Handlers for an ingress that reads bodies and calls replicas."""

    _read: Callable[..., Any]
    _ask: Callable[..., Any]
    _deployments: dict[str, Deployment]

    async def embeddings(self, request: Request) -> Response:
        """POST /v1/embeddings"""
        return await self._pool(request, to_embeddings, "embeddings")

    async def rerank(self, request: Request) -> Response:
        """POST /v1/rerank"""
        return await self._pool(request, to_rerank, "score")

    async def score(self, request: Request) -> Response:
        """POST /v1/score"""
        return await self._pool(request, to_score, "score")

    async def not_generated(self) -> Response:
        """POST to routes of models that neither generate, embed nor score."""
        pooling = [each.pools for each in self._deployments.values()]
        said = [] if all(pooling) and pooling else [f"generate {_GENERATING}"]
        said += [f"embed or score {_POOLING}"] if any(pooling) else []
        raise RequestError(f"The models served here {' Or they '.join(said)}", code=_CODE)

    def require_fit(self, model: str, method: str) -> None:
        """Raise RequestError if the model cannot serve a replica's `method`."""
        if self.pools(model) and method not in (*POOLED, "tokenize", "detokenize"):
            raise RequestError(f"{model} embeds or scores {_POOLING}", param="model", code=_CODE)
        if not self.pools(model) and method in POOLED:
            raise RequestError(f"{model} generates {_GENERATING}", param="model", code=_CODE)

    def pools(self, model: str) -> bool:
        """Whether a model embeds or scores text."""
        deployment = self._deployments.get(model)
        return deployment is not None and deployment.pools

    async def _pool(self, request: Request, make: Callable[[dict[str, Any]], PooledRequest], method: str) -> Response:
        if not any(map(self.pools, self._deployments)):
            return await self.not_generated()
        body = await self._read(request, make, check_pooled)
        answer: Response = await self._ask(request, body, method, body.prompt_field)
        return answer
