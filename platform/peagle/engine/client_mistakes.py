"""Logs a client's mistake in one line instead of vLLM's and Ray Serve's traceback; the client gets the reason.

Tracebacks of all other errors stay.
"""

import logging
from collections.abc import Callable

from peagle.api.reply import bounded
from peagle.errors import OverloadedError, RequestError

# Loggers of vLLM's modules that read requests, and of those that compile grammars.
_READS_REQUESTS = ("vllm.entrypoints.", "vllm.renderers.")
_COMPILES_GRAMMARS = ("vllm.v1.structured_output",)
# The scheduler's next line says the same.
_SAID_AGAIN = "Failed to advance FSM"

IsMistake = Callable[[str, BaseException], bool]
"""Whether an exception in a record of the named logger is a client's mistake."""


class OneLine(logging.Filter):
    """Replaces the traceback of a client's mistake by a single line."""

    def __init__(self, is_mistake: IsMistake) -> None:
        super().__init__()
        self._is_mistake = is_mistake

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if record.name == "ray.serve" and type(error).__name__ == "GenerationError":
            return False  # vLLM has already logged the failure and its reason
        if error is None:
            return not (record.name.startswith(_COMPILES_GRAMMARS) and record.getMessage().startswith(_SAID_AGAIN))
        if self._is_mistake(record.name, error):
            said = " ".join(f"{record.getMessage()} {type(error).__name__}: {error}".split())
            record.msg, record.args = bounded(said), ()
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return True


def shorten(logger: logging.Logger | logging.Handler, is_mistake: IsMistake) -> None:
    """Add the filter to a logger or a handler. Idempotent."""
    if not any(isinstance(each, OneLine) for each in logger.filters):
        logger.addFilter(OneLine(is_mistake))


def shorten_vllm(is_mistake: IsMistake) -> None:
    """Add the filter to all of vLLM's loggers in this process."""
    # A logger's filters do not see records of its children; its handlers do.
    for handler in logging.getLogger("vllm").handlers:
        shorten(handler, is_mistake)


def in_vllm(name: str, error: BaseException) -> bool:
    """Return whether vLLM's record is about an invalid request."""
    if name.startswith(_COMPILES_GRAMMARS):
        return True
    if not name.startswith(_READS_REQUESTS) or not isinstance(error, Exception):
        return False
    # Imported here: an engine core's process does not need it.
    from peagle.api.openai_errors import is_client_caused

    return is_client_caused(error)


def in_serve(_: str, error: BaseException) -> bool:
    """Return whether Ray Serve's record is about an invalid request, as a replica's server raises it."""
    return isinstance(error, RequestError | OverloadedError)
