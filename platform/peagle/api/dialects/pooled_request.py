"""Embedding and scoring requests and answers: checked here, parsed by vLLM's own handlers in a replica.

An answer is passed on as the bytes that vLLM wrote. It may hold millions of numbers, which nothing here has to parse.
"""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel
from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest
from vllm.entrypoints.pooling.scoring.protocol import (
    RerankRequest,
    ScoreDataRequest,
    ScoreQueriesDocumentsRequest,
    ScoreQueriesItemsRequest,
    ScoreTextRequest,
)

from peagle.api.body import validate
from peagle.api.bounds.pooled_bounds import texts_in
from peagle.errors import RequestError

Kind = Literal["embeddings", "rerank", "score"]

# The only encodings that OpenAI's client library reads.
ENCODINGS = ("float", "base64")
# The fields of the two sides of a scored pair, and vLLM's model of such a body.
_SIDES: Mapping[tuple[str, str], type[BaseModel]] = {
    ("queries", "documents"): ScoreQueriesDocumentsRequest,
    ("queries", "items"): ScoreQueriesItemsRequest,
    ("text_1", "text_2"): ScoreTextRequest,
    ("data_1", "data_2"): ScoreDataRequest,
}
_USAGE = b'"usage":'


class PooledRequest(BaseModel):
    """A request as plain values, with the attributes of a completion that dispatch and limits read.

    Attributes:
        fields: The body.
    """

    kind: Kind
    model: str | None
    fields: dict[str, Any]
    request_id: str = ""

    @property
    def prompt_field(self) -> str:
        """Name of the field that holds the texts."""
        return "input" if self.kind == "embeddings" else sides_of(self.kind, self.fields)[1]

    @property
    def prompt(self) -> list[Any]:
        """The model's input: texts or token ids."""
        if self.kind == "embeddings":
            return texts_in(self.fields["input"])
        left, right = (texts_in(self.fields[side]) for side in sides_of(self.kind, self.fields))
        count = max(len(left), len(right))
        left, right = (side * count if len(side) == 1 else side for side in (left, right))
        return [f"{one}\n{other}" for one, other in zip(left, right, strict=False)]

    @property
    def max_tokens(self) -> int:
        """0: an answer has no tokens."""
        return 0

    def read(self) -> BaseModel:
        """Return vLLM's request model."""
        return _model(self.kind, self.fields).model_validate(self.fields)


class PooledReply(BaseModel):
    """A complete answer: the JSON text, and its `usage`."""

    usage: dict[str, Any]
    body: bytes

    @classmethod
    def of(cls, body: bytes) -> "PooledReply":
        # Text cannot match this: JSON escapes quotes inside a string.
        rest = body[body.rfind(_USAGE) + len(_USAGE) :][:1024]
        usage, _ = json.JSONDecoder().raw_decode(rest.decode(errors="replace"))
        return cls(usage=usage, body=body)


def to_embeddings(data: dict[str, Any]) -> PooledRequest:
    """Make an embedding request from a parsed body. Raises as `validate` does."""
    if data.get("messages"):
        message = "messages is not supported: send the texts in input."
        raise RequestError(message, param="messages", code="unsupported_parameter")
    encoding = data.get("encoding_format", ENCODINGS[0])
    if encoding not in ENCODINGS:
        message = f"encoding_format: {encoding!r} is not supported; use {' or '.join(ENCODINGS)}."
        raise RequestError(message, param="encoding_format")
    return _pooled("embeddings", data)


def to_rerank(data: dict[str, Any]) -> PooledRequest:
    """Make a rerank request from a parsed body. Raises as `to_embeddings` does."""
    return _pooled("rerank", data)


def to_score(data: dict[str, Any]) -> PooledRequest:
    """Make a score request from a parsed body. Raises as `to_embeddings` does."""
    return _pooled("score", data)


def sides_of(kind: Kind, fields: Mapping[str, Any]) -> tuple[str, str]:
    """Return the names of the two fields whose texts are scored against each other."""
    if kind == "rerank":
        return "query", "documents"
    return next((sides for sides in _SIDES if sides[0] in fields and sides[1] in fields), next(iter(_SIDES)))


def _model(kind: Kind, fields: Mapping[str, Any]) -> type[BaseModel]:
    models: Mapping[Kind, type[BaseModel]] = {"embeddings": EmbeddingCompletionRequest, "rerank": RerankRequest}
    return models.get(kind) or _SIDES[sides_of(kind, fields)]


def _pooled(kind: Kind, data: dict[str, Any]) -> PooledRequest:
    # Validators modify their input.
    validate(_model(kind, data), dict(data))
    return PooledRequest(kind=kind, model=data.get("model"), fields=data)
