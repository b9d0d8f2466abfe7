"""Limits of the HTTP surface. All settings are optional: the defaults are closed and bounded."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from peagle.errors import ConfigError


class GrammarSettings(BaseModel):
    """Limits on the schemas, patterns, grammars and choices of one request, including those of its tools.

    An engine compiles them before it generates. A request over a limit is answered with 400. So is a grammar that takes
    too long to compile: each grammar is first compiled on trial, in a process that can be stopped.

    Attributes:
        max_chars: Characters of all names and texts, descriptions included; 524,288 by default.
        max_choices: Total choices: values of `enum`, branches of `anyOf` and similar, and entries of
            `structured_outputs.choice`; 2,500 by default.
        max_choice_chars: Characters of all values of `enum` and entries of `structured_outputs.choice`; 50,000 by
            default.
        max_properties: Total properties of all objects; 5,000 by default.
        max_optional_properties: Optional properties of one object; 250 by default. Compile time grows with the square
            of their number.
        max_optional_pairs: Sum over all patterns of the square of the number of optional parts (`?`, `*`, `{0,n}`),
            because compile time grows with it; 20,000 by default: one pattern of 141 such parts, or 200 of 10.
        max_depth: Levels of nested arrays and objects of a schema, and of groups in a pattern; 64 by default.
        max_reference_depth: Levels of a schema with each `$ref` followed; 256 by default.
        max_repetitions: Largest value of `minItems`, `maxItems`, `minLength`, `maxLength` and similar, and of
            `{m,n}` in patterns and grammars; 1,000,000 by default.
        max_expanded: Parts of a schema with each `$ref` expanded, and of a pattern with each `{m,n}` written out;
            1,000,000 by default. A recursive `$ref` is expanded once.
        max_pattern_chars: Characters of one regular expression; 8,192 by default.
        max_grammar_chars: Characters of one `structured_outputs.grammar`; 65,536 by default.
        compile_timeout_s: Longest trial compilation of a grammar; 1 by default. A grammar that passes is compiled once
            more in the engine, which caches it. Not applied if the engine's `structured_outputs_config.backend` is
            `guidance`, which compiles as it generates, within its own limits.
        compile_memory_bytes: Most memory that a trial compilation may allocate; 1 GiB by default.
        max_mask_s: Longest CPU time to compute a grammar's mask of allowed next tokens, because all requests of an
            engine wait for it; 0.05 by default. It is measured on trial and while the engine generates: a request
            whose grammar becomes slower ends with an error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_chars: int = Field(default=2**19, ge=2**10, le=2**30)
    max_choices: int = Field(default=2500, ge=1, le=2**20)
    max_choice_chars: int = Field(default=50_000, ge=2**10, le=2**30)
    max_properties: int = Field(default=5000, ge=1, le=2**20)
    max_optional_properties: int = Field(default=250, ge=1, le=2**20)
    max_optional_pairs: int = Field(default=20_000, ge=1, le=2**40)
    max_depth: int = Field(default=64, ge=8, le=192)
    # References are followed recursively, and Python limits recursion.
    max_reference_depth: int = Field(default=256, ge=8, le=320)
    max_repetitions: int = Field(default=1_000_000, ge=1, le=2**31)
    max_expanded: int = Field(default=1_000_000, ge=2**10, le=2**40)
    max_pattern_chars: int = Field(default=8192, ge=64, le=2**30)
    max_grammar_chars: int = Field(default=2**16, ge=64, le=2**30)
    compile_timeout_s: float = Field(default=1.0, ge=0.1, le=600.0)
    compile_memory_bytes: int = Field(default=2**30, ge=2**26, le=2**40)
    max_mask_s: float = Field(default=0.05, ge=0.001, le=60.0)


class ApiSettings(BaseModel):
    """Limits on requests, timeouts, and origins allowed to call from a browser.

    Attributes:
        max_body_bytes: Largest request body; a larger body is answered with 413 while it is still being read.
        max_json_depth: Deepest nesting of arrays and objects in a body, and in a JSON text within it, such as the
            arguments of a tool call.
        max_messages: Messages of a chat; 4,096 by default.
        max_content_parts: Content parts and tool calls of all messages; 4,096 by default.
        max_tools: Tools of a chat; 512 by default.
        max_answers: Answers of one request: `n` times the number of prompts; 32 by default.
        max_inputs: Texts to embed, or pairs of texts to score, in one request; 1,024 by default.
        max_prompt_chars: Characters of a request's prompts, or of its messages and tools, before tokenization; a
            token id counts as one. By default 16 for each token of the model's `max_model_len`, but at least 262,144;
            4,194,304 if the deployment sets no length. For embedding and scoring it limits each text or pair; all of
            them together may have 8 times as many, up to 2,097,152.
        grammar: Limits on schemas, patterns, grammars and choices.
        body_timeout_s: Longest time a client may take to send its body.
        request_timeout_s: Longest wait for a replica's next output: the whole answer, or the next event of a stream.
            Also how long a replica or an ingress process that is stopping may finish its requests: raise it if streams
            take longer.
        probe_timeout_s: Longest wait for one replica in `/health`, `/fleet` and `/metrics`.
        retry_after_s: Minimum `Retry-After` of an overloaded server; longer if capacity is expected later.
        replica_wait_s: Longest wait for a replica while the model has none running, such as while its only replica is
            replaced; 30 by default. Then the answer is 503 with `Retry-After`.
        replica_retries: Retries on another replica when a request's replica is lost before the first token.
        ingresses: Minimum number of ingress processes; more are started under load. With one, requests are refused
            with 503 while it is replaced; with two, the other takes over at once. Each uses about 470 MiB and reserves
            one CPU in Ray.
        keys_file: File of the API keys that clients may send, read where the ingress runs, and again while it runs.
            It has one key on each line; or it is YAML, `keys:` with a list of entries of `name` and `key` or
            `key_sha256`, and optionally `weight`, `class` (interactive or batch) and `limits`
            (`requests_per_minute`, `tokens_per_minute`, `requests_at_once`, `tokens_waiting`). Without a file, no key
            is required.
        metrics: Whether requests are counted and timed for `/metrics` and vLLM's own series. Dispatch and depth do not
            depend on it.
        cors_origins: Browser origins that may call, such as `https://chat.example.org`; `*` is any. Default: none.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_body_bytes: int = Field(default=16 * 2**20, ge=2**10, le=2**30)
    # The JSON parser itself stops at 200 levels.
    max_json_depth: int = Field(default=64, ge=8, le=192)
    max_messages: int = Field(default=4096, ge=1, le=2**20)
    max_content_parts: int = Field(default=4096, ge=1, le=2**20)
    max_tools: int = Field(default=512, ge=1, le=2**20)
    max_answers: int = Field(default=32, ge=1, le=2**14)
    max_inputs: int = Field(default=1024, ge=1, le=2**14)
    max_prompt_chars: int | None = Field(default=None, ge=2**10, le=2**30)
    grammar: GrammarSettings = GrammarSettings()
    body_timeout_s: float = Field(default=60.0, gt=0, le=3600)
    request_timeout_s: float = Field(default=600.0, gt=0, le=86_400)
    probe_timeout_s: float = Field(default=5.0, gt=0, le=60)
    retry_after_s: int = Field(default=1, ge=1, le=3600)
    replica_wait_s: float = Field(default=30.0, gt=0, le=3600)
    replica_retries: int = Field(default=1, ge=0, le=8)
    ingresses: int = Field(default=1, ge=1, le=64)
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
                raise ValueError(
                    f"{origin!r} is not an origin; write scheme and host only, such as https://example.org"
                )
        return origins


def read_settings(raw: object, origin: str = "args.api") -> ApiSettings:
    """Validate the HTTP settings at `origin`: `ApiSettings`, a mapping of its fields, or None for the defaults.

    Raises ConfigError if a field is unknown or invalid.
    """
    try:
        return ApiSettings.model_validate(raw or {})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([origin, *map(str, first["loc"])])
        problem = first["msg"].removeprefix("Value error, ")
        raise ConfigError(place, first["input"], problem, "Correct that setting.") from None
