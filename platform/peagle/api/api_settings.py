"""Limits of the HTTP surface. Nothing here is needed to start: the defaults are closed and bounded."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ApiSettings(BaseModel):
    """What a client may send, how long it may take, and who may call from a browser.

    Attributes:
        max_body_bytes: Largest request body; a longer one is answered with 413 while it is still being read.
        max_json_depth: Deepest nesting of arrays and objects in a body.
        body_timeout_s: Longest time a client may take to send its body.
        request_timeout_s: Longest wait for a replica's next piece: the whole answer, or the next event of a stream.
            Also how long a replica or an ingress process that has to leave may go on with what it has: raise it where
            streams take longer.
        probe_timeout_s: Longest wait for one replica in `/health`, `/fleet` and `/metrics`.
        retry_after_s: The least that an overloaded server tells its clients to wait; longer where a place is expected
            later.
        replica_retries: How often a request whose replica was lost before the first token is sent to another.
        keys_file: File with the API keys that clients may send, one on each line, read where the ingress runs. Without
            one, anybody may ask.
        metrics: Whether requests are counted and timed, and `/metrics` and vLLM's own series tell of them. What decides
            dispatch and depth is known without.
        cors_origins: Browser origins that may call, such as `https://chat.example.org`; `*` is any. None by default.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_body_bytes: int = Field(default=16 * 2**20, ge=2**10, le=2**30)
    # The JSON parser itself stops at 200 levels.
    max_json_depth: int = Field(default=64, ge=8, le=192)
    body_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    request_timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    probe_timeout_s: float = Field(default=5.0, gt=0, le=60)
    retry_after_s: int = Field(default=1, ge=1, le=3600)
    replica_retries: int = Field(default=1, ge=0, le=8)
    keys_file: str | None = Field(default=None, min_length=1)
    metrics: bool = True
    # Not strict, since YAML and JSON have lists but no tuples.
    cors_origins: Annotated[tuple[str, ...], Field(strict=False, max_length=64)] = ()

    @field_validator("cors_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            parts = urlsplit(origin)
            bare = f"{parts.scheme}://{parts.netloc}"
            if origin != "*" and (parts.scheme not in ("http", "https") or not parts.netloc or origin != bare):
                raise ValueError(f"{origin!r} is no origin; write scheme and host only, such as https://example.org")
        return origins
