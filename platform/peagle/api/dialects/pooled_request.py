"""Requests to embed or score texts, and their answers: checked here, read by vLLM's own handlers in a replica.

An answer travels as the bytes that vLLM wrote. It may hold millions of numbers, which nothing here has to read.
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

# Of which the client's library reads no other.
ENCODINGS = ("float", "base64")
# The fields that hold the two sides of what is scored, and vLLM's model of such a body.
_SIDES: Mapping[tuple[str, str], type[BaseModel]] = {
    ("queries", "documents"): ScoreQueriesDocumentsRequest,
    ("queries", "items"): ScoreQueriesItemsRequest,
    ("text_1", "text_2"): ScoreTextRequest,
    ("data_1", "data_2"): ScoreDataRequest,
}
_USAGE = b'"usage":'


class PooledRequest(BaseModel):
    """A request as plain values. It has the names by which dispatch and limits read a completion.

    Attributes:
        fields: The body.
    """

    kind: Kind
    model: str | None
    fields: dict[str, Any]
    request_id: str = ""

    @property
    def prompt_field(self) -> str:
        """The field that holds the texts."""
        return "input" if self.kind == "embeddings" else sides_of(self.kind, self.fields)[1]

    @property
    def prompt(self) -> list[Any]:
        """What the model reads: texts or token ids."""
        if self.kind == "embeddings":
            return texts_in(self.fields["input"])
        left, right = (texts_in(self.fields[side]) for side in sides_of(self.kind, self.fields))
        count = max(len(left), len(right))
        left, right = (side * count if len(side) == 1 else side for side in (left, right))
        return [f"{one}\n{other}" for one, other in zip(left, right, strict=False)]

    @property
    def max_tokens(self) -> int:
        """An answer has no tokens."""
        return 0

    def read(self) -> BaseModel:
        """As vLLM's handlers take it."""
        return _model(self.kind, self.fields).model_validate(self.fields)


class PooledReply(BaseModel):
    """A whole answer: the JSON text, and its `usage`."""

    usage: dict[str, Any]
    body: bytes

    @classmethod
    def of(cls, body: bytes) -> "PooledReply":
        # No text in it can look so: JSON escapes a quote inside a string.
        rest = body[body.rfind(_USAGE) + len(_USAGE) :][:1024]
        usage, _ = json.JSONDecoder().raw_decode(rest.decode(errors="replace"))
        return cls(usage=usage, body=body)


def to_embeddings(data: dict[str, Any]) -> PooledRequest:
    """Make a request to embed of a parsed body; raise what `validate` does."""
    if data.get("messages"):
        message = "messages is not supported: send the texts in input."
        raise RequestError(message, param="messages", code="unsupported_parameter")
    encoding = data.get("encoding_format", ENCODINGS[0])
    if encoding not in ENCODINGS:
        message = f"encoding_format: there is no {encoding!r} here; write {' or '.join(ENCODINGS)}."
        raise RequestError(message, param="encoding_format")
    return _pooled("embeddings", data)


def to_rerank(data: dict[str, Any]) -> PooledRequest:
    """Make a request to rerank of a parsed body; raise what `to_embeddings` does."""
    return _pooled("rerank", data)


def to_score(data: dict[str, Any]) -> PooledRequest:
    """Make a request to score of a parsed body; raise what `to_embeddings` does."""
    return _pooled("score", data)


def sides_of(kind: Kind, fields: Mapping[str, Any]) -> tuple[str, str]:
    """The names of the two fields whose texts are scored with each other."""
    if kind == "rerank":
        return "query", "documents"
    return next((sides for sides in _SIDES if sides[0] in fields and sides[1] in fields), next(iter(_SIDES)))


def _model(kind: Kind, fields: Mapping[str, Any]) -> type[BaseModel]:
    models: Mapping[Kind, type[BaseModel]] = {"embeddings": EmbeddingCompletionRequest, "rerank": RerankRequest}
    return models.get(kind) or _SIDES[sides_of(kind, fields)]


def _pooled(kind: Kind, data: dict[str, Any]) -> PooledRequest:
    # Validators write into what they are given.
    validate(_model(kind, data), dict(data))
    return PooledRequest(kind=kind, model=data.get("model"), fields=data)
