"""The exceptions that peagle raises on purpose.

PeagleError
├── ConfigError            invalid deployment file, option or checkpoint (names field, value and fix)
│   └── CombinedConfigError       several ConfigErrors at once
├── StartupError           this machine cannot run the platform now: port, memory, missing model, unknown vLLM
├── ClusterError           the Kubernetes API refuses a call or does not answer
├── RequestError           client error, answered with OpenAI's error object
│   ├── NotFoundError      404: unknown model or path
│   └── TooLargeError      413: body over the limit
├── OverloadedError        429 with Retry-After
├── LimitError             429: over a limit of the client's API key
├── ReplicaLostError       502: the replica ended before it answered
├── EngineStalledError     503: the replica's engine stopped responding; another replica may answer
├── EngineGoneError        503: the replica's engine had already ended; another replica may answer
├── NoReplicaError         503: no replica became available in time
├── RouterLostError        503: the Router does not answer
└── EngineError            an engine's error reply, in `api/openai_errors.py`

Each passes all its arguments to `Exception.__init__`, so that it survives pickling between Ray processes.
"""

import reprlib
from collections.abc import Sequence
from typing import ClassVar

# Longest value or field path shown in a message. Both may come from outside, at any length.
_SHOWN_CHARACTERS = 120
_show = reprlib.Repr()
_show.maxstring = _show.maxother = _show.maxlong = _SHOWN_CHARACTERS


class PeagleError(Exception):
    """Base of the tree. `http_status` is the status a client sees, `kind` the type in OpenAI's error object."""

    http_status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        return self.message


class ConfigError(PeagleError):
    """A configured value is invalid.

    Args:
        field: Path of the value: `deployments/x.yaml: speculation.depth_max`.
        value: The configured value; None if there is none.
        problem: What is wrong with it.
        fix: What to write or run instead, as a sentence.
    """

    http_status = 400
    kind = "invalid_request_error"

    def __init__(self, field: str, value: object, problem: str, fix: str) -> None:
        Exception.__init__(self, field, value, problem, fix)
        self.field, self.value, self.problem, self.fix = field, value, problem, fix
        stands = "" if value is None else f" = {_shown(value)}"
        self.message = f"{_printable(field)}{stands}: {_printable(problem)}. {_printable(fix)}"

    @property
    def problems(self) -> "tuple[ConfigError, ...]":
        """All problems, so that a caller prints one or several the same way."""
        return (self,)

    def under(self, origin: str) -> "ConfigError":
        """Return the same problem with `origin`, such as a file path, in front of its field."""
        return ConfigError(f"{origin}: {self.field}", self.value, self.problem, self.fix)


class CombinedConfigError(ConfigError):
    """Several configured values are invalid.

    Field, value, problem and fix are those of the first problem; the message lists all of them.

    Args:
        problems: At least one single problem.
    """

    def __init__(self, *problems: ConfigError) -> None:
        first = problems[0]
        super().__init__(first.field, first.value, first.problem, first.fix)
        self.args = problems
        self.message = "\n".join(problem.message for problem in problems)

    @property
    def problems(self) -> tuple[ConfigError, ...]:
        return self.args

    def under(self, origin: str) -> "CombinedConfigError":
        return CombinedConfigError(*(problem.under(origin) for problem in self.problems))

    @classmethod
    def of(cls, problems: Sequence[ConfigError]) -> ConfigError:
        """Return `problems` (at least one) as one exception to raise."""
        return problems[0] if len(problems) == 1 else cls(*problems)


def _shown(value: object) -> str:
    try:
        return _show.repr(value)
    except ValueError:  # Python refuses to print a number this long
        return "a number of thousands of digits"


def _printable(text: str) -> str:
    """Return `text` on one line, without control characters."""
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


class StartupError(PeagleError):
    """The platform cannot start on this machine now: `problem` in one line, `fix` in another."""

    http_status = 503

    def __init__(self, problem: str, fix: str) -> None:
        Exception.__init__(self, problem, fix)
        self.problem, self.fix = problem, fix
        self.message = f"{problem}. {fix}"


class ClusterError(PeagleError):
    """A call to the Kubernetes API failed.

    Args:
        status: HTTP status of the answer; 0 if none arrived.
        action: The requested action, as in "list nodes".
        reason: The reason given by the API or the network.
    """

    http_status = 502

    def __init__(self, status: int, action: str, reason: str) -> None:
        Exception.__init__(self, status, action, reason)
        self.status, self.action, self.reason = status, action, _printable(reason)
        if status == 0:
            self.message = f"Kubernetes does not answer ({self.reason}). Check the context and the network."
        elif status == 401:
            self.message = f"Kubernetes rejects these credentials ({self.reason}). Renew them."
        elif status == 403:
            self.message = f"Kubernetes does not let this account {action} ({self.reason}). Grant it that right."
        else:
            self.message = f"Kubernetes could not {action}: status {status}, {self.reason}"


class RequestError(PeagleError):
    """Client error. `param` names the request field at fault; `code` is OpenAI's error code, if there is one."""

    http_status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, param: str | None = None, code: str | None = None) -> None:
        Exception.__init__(self, message, param, code)
        self.message, self.param, self.code = message, param, code


class NotFoundError(RequestError):
    http_status = 404


class TooLargeError(RequestError):
    http_status = 413


class OverloadedError(PeagleError):
    """No capacity for the request now; `retry_after_s` becomes the Retry-After header."""

    http_status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, retry_after_s: float) -> None:
        Exception.__init__(self, message, retry_after_s)
        self.message, self.retry_after_s = message, retry_after_s


class LimitError(PeagleError):
    """The request is over a limit of its client.

    Args:
        message: Names the limit, its value and the key's name.
        retry_after_s: Time until the limit allows it; None if the request alone is over the limit.
        limit: Name of the limit in the keys file.
    """

    http_status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, retry_after_s: float | None, limit: str) -> None:
        Exception.__init__(self, message, retry_after_s, limit)
        self.message, self.retry_after_s, self.limit = message, retry_after_s, limit


class ReplicaLostError(PeagleError):
    http_status = 502


class EngineStalledError(PeagleError):
    http_status = 503


class EngineGoneError(PeagleError):
    http_status = 503


class NoReplicaError(PeagleError):
    http_status = 503


class RouterLostError(PeagleError):
    """The Router does not answer; replicas keep generating without it."""

    http_status = 503
