"""Limits of the HTTP surface. Nothing here is needed to start: the defaults are closed and bounded."""

from typing import Annotated
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from peagle.errors import ConfigError


class GrammarSettings(BaseModel):
    """The most that one request's schemas, patterns, grammars and choices may hold, those of its tools included.

    An engine compiles them before it generates. What a request names beyond a bound is answered with 400. So is what
    takes too long to compile: each grammar is compiled on trial first, in a process that can be stopped.

    Attributes:
        max_chars: Characters of all names and texts, descriptions too; 524,288 by default.
        max_choices: Choices in all: values of `enum`, branches of `anyOf` and its like, and entries of
            `structured_outputs.choice`; 2,500 by default.
        max_choice_chars: Characters of all values of `enum` and entries of `structured_outputs.choice`; 50,000 by
            default.
        max_properties: Properties of objects in all; 5,000 by default.
        max_optional_properties: Properties of one object that it does not require; 250 by default. Time grows with
            their square.
        max_optional_pairs: Sum over all patterns of the square of their parts that may be left out (`?`, `*`, `{0,n}`),
            as time grows with it; 20,000 by default: one pattern of 141 such parts, or 200 of 10.
        max_depth: Levels of nested arrays and objects of a schema, and of groups in a pattern; 64 by default.
        max_reference_depth: Levels of a schema with each `$ref` followed; 256 by default.
        max_repetitions: Largest count of `minItems`, `maxItems`, `minLength`, `maxLength` and their like, and of
            `{m,n}` in patterns and grammars; 1,000,000 by default.
        max_expanded: Parts of a schema with each `$ref` replaced by what it names, and of a pattern with each `{m,n}`
            written out; 1,000,000 by default. A `$ref` within what it names is not followed again.
        max_pattern_chars: Characters of one regular expression; 8,192 by default.
        max_grammar_chars: Characters of one `structured_outputs.grammar`; 65,536 by default.
        compile_timeout_s: Longest time that a grammar may compile, on trial; 1 by default. What passes is compiled once
            more in the engine, which remembers it. It does not apply where an engine's
            `structured_outputs_config.backend` is `guidance`, which compiles as it generates, within its own limits.
        compile_memory_bytes: The most that a grammar's trial may allocate; 1 GiB by default.
        max_mask_s: Longest processor time that a grammar may take to say which tokens may come next, as all requests of
            an engine wait for it; 0.05 by default. It is measured on trial, and as the engine generates: a request
            whose grammar becomes slower than that ends with an error.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_chars: int = Field(default=2**19, ge=2**10, le=2**30)
    max_choices: int = Field(default=2500, ge=1, le=2**20)
    max_choice_chars: int = Field(default=50_000, ge=2**10, le=2**30)
    max_properties: int = Field(default=5000, ge=1, le=2**20)
    max_optional_properties: int = Field(default=250, ge=1, le=2**20)
    max_optional_pairs: int = Field(default=20_000, ge=1, le=2**40)
    max_depth: int = Field(default=64, ge=8, le=192)
    # Followed by recursion, of which Python has a limit.
    max_reference_depth: int = Field(default=256, ge=8, le=320)
    max_repetitions: int = Field(default=1_000_000, ge=1, le=2**31)
    max_expanded: int = Field(default=1_000_000, ge=2**10, le=2**40)
    max_pattern_chars: int = Field(default=8192, ge=64, le=2**30)
    max_grammar_chars: int = Field(default=2**16, ge=64, le=2**30)
    compile_timeout_s: float = Field(default=1.0, ge=0.1, le=600.0)
    compile_memory_bytes: int = Field(default=2**30, ge=2**26, le=2**40)
    max_mask_s: float = Field(default=0.05, ge=0.001, le=60.0)


class ApiSettings(BaseModel):
    """What a client may send, how long it may take, and who may call from a browser.

    Attributes:
        max_body_bytes: Largest request body; a longer one is answered with 413 while it is still being read.
        max_json_depth: Deepest nesting of arrays and objects in a body, and in a JSON text within it, such as the
            arguments of a tool call.
        max_messages: Messages of a chat; 4,096 by default.
        max_content_parts: Content parts and tool calls of all messages; 4,096 by default.
        max_tools: Tools of a chat; 512 by default.
        max_answers: Answers that one request may ask for: `n` for each of its prompts; 32 by default.
        max_inputs: Texts that one request may embed, or pairs of texts that it may score; 1,024 by default.
        max_prompt_chars: Characters of a request's prompts, or of its messages and tools, before any is tokenized; a
            token id counts as one. By default 16 for each token of the model's `max_model_len`, but at least 262,144;
            4,194,304 where the deployment names no length. Of a request that embeds or scores, characters of each text
            or pair; all of them together may have 8 times as many, up to 2,097,152.
        grammar: What schemas, patterns, grammars and choices may hold.
        body_timeout_s: Longest time a client may take to send its body.
        request_timeout_s: Longest wait for a replica's next piece: the whole answer, or the next event of a stream.
            Also how long a replica or an ingress process that has to leave may go on with what it has: raise it where
            streams take longer.
        probe_timeout_s: Longest wait for one replica in `/health`, `/fleet` and `/metrics`.
        retry_after_s: The least that an overloaded server tells its clients to wait; longer where a place is expected
            later.
        replica_wait_s: Longest wait for a replica while the model has none that lives, such as while its only one is
            replaced; 30 by default. Then the answer is 503 with `Retry-After`.
        replica_retries: How often a request whose replica was lost before the first token is sent to another.
        ingresses: Ingress processes that run at least; more are started as requests come. With one, requests are
            refused with 503 while it is replaced; of two, the other takes over at once. Each takes about 470 MiB, and
            one CPU in Ray's account.
        keys_file: File with the API keys that clients may send, read where the ingress runs, and again while it runs.
            It has one on each line; or it is YAML, `keys:` with a list of entries of `name` and `key` or `key_sha256`,
            and if wanted `weight`, `class` (interactive or batch) and `limits` (`requests_per_minute`,
            `tokens_per_minute`, `requests_at_once`, `tokens_waiting`). Without a file, anybody may ask.
        metrics: Whether requests are counted and timed, and `/metrics` and vLLM's own series tell of them. What decides
            dispatch and depth is known without.
        cors_origins: Browser origins that may call, such as `https://chat.example.org`; `*` is any. None by default.
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
                raise ValueError(f"{origin!r} is no origin; write scheme and host only, such as https://example.org")
        return origins


def read_settings(raw: object, origin: str = "args.api") -> ApiSettings:
    """Validate the HTTP settings at `origin`: `ApiSettings`, a mapping of its fields, or None for the defaults.

    Raises ConfigError where a field is unknown or wrong.
    """
    try:
        return ApiSettings.model_validate(raw or {})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join([origin, *map(str, first["loc"])])
        problem = first["msg"].removeprefix("Value error, ")
        raise ConfigError(place, first["input"], problem, "Correct that setting.") from None
