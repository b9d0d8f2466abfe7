"""One line of log for what a client did wrong, where vLLM and Ray Serve print a traceback: the client is told why.

Tracebacks of what is no client's mistake stay.
"""

import logging
from collections.abc import Callable

from peagle.api.reply import bounded
from peagle.errors import OverloadedError, RequestError

# Of vLLM's loggers, those of what reads requests, and those of what compiles their grammars.
_READS_REQUESTS = ("vllm.entrypoints.", "vllm.renderers.")
_COMPILES_GRAMMARS = ("vllm.v1.structured_output",)
# What the scheduler's next line says, too.
_SAID_AGAIN = "Failed to advance FSM"

IsMistake = Callable[[str, BaseException], bool]
"""Whether an exception in a record of the logger of that name is a client's mistake."""


class OneLine(logging.Filter):
    """Takes the traceback off a record that has one for a client's mistake, and says the mistake instead."""

    def __init__(self, is_mistake: IsMistake) -> None:
        super().__init__()
        self._is_mistake = is_mistake

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if record.name == "ray.serve" and type(error).__name__ == "GenerationError":
            return False  # vLLM has logged that it failed, and why
        if error is None:
            return not (record.name.startswith(_COMPILES_GRAMMARS) and record.getMessage().startswith(_SAID_AGAIN))
        if self._is_mistake(record.name, error):
            said = " ".join(f"{record.getMessage()} {type(error).__name__}: {error}".split())
            record.msg, record.args = bounded(said), ()
            record.exc_info = record.exc_text = None
            record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
        return True


def shorten(logger: logging.Logger | logging.Handler, is_mistake: IsMistake) -> None:
    """Have a logger or a handler do so; again, it changes nothing."""
    if not any(isinstance(each, OneLine) for each in logger.filters):
        logger.addFilter(OneLine(is_mistake))


def shorten_vllm(is_mistake: IsMistake) -> None:
    """Have all of vLLM's loggers in this process do so."""
    # Filters of a logger see nothing of those below it; its handlers do.
    for handler in logging.getLogger("vllm").handlers:
        shorten(handler, is_mistake)


def in_vllm(name: str, error: BaseException) -> bool:
    """Whether vLLM's record is of a request that cannot be answered."""
    if name.startswith(_COMPILES_GRAMMARS):
        return True
    if not name.startswith(_READS_REQUESTS) or not isinstance(error, Exception):
        return False
    # Imported here: an engine core's process needs nothing of it.
    from peagle.api.openai_errors import is_client_caused

    return is_client_caused(error)


def in_serve(_: str, error: BaseException) -> bool:
    """Whether Ray Serve's record is of a request that cannot be answered, as a replica's server raises it."""
    return isinstance(error, RequestError | OverloadedError)
