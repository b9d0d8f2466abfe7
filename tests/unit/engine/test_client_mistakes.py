"""How vLLM's and Ray Serve's log records about invalid requests are shortened."""

import logging

import pytest

pytest.importorskip("vllm")

from vllm.exceptions import GenerationError, VLLMValidationError

from peagle.engine.client_mistakes import IsMistake, OneLine, in_serve, in_vllm, shorten, shorten_vllm
from peagle.errors import RequestError

COMPLETIONS = "vllm.entrypoints.openai.completion.serving"
GRAMMARS = "vllm.v1.structured_output"


def record_of(name: str, text: str, error: BaseException | None = None) -> logging.LogRecord:
    told = None if error is None else (type(error), error, error.__traceback__)
    return logging.LogRecord(name, logging.ERROR, __file__, 1, text, ("r1",), told)


def said(name: str, error: BaseException, is_mistake: IsMistake) -> str:
    """Return the level and the text of a record about `error`."""
    try:
        raise error
    except BaseException as caught:
        record = record_of(name, "Request %s failed.", caught)
    assert OneLine(is_mistake).filter(record)
    return f"{record.levelname} {logging.Formatter().format(record)}"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        (COMPLETIONS, VLLMValidationError("logprobs is\n 1000")),
        (COMPLETIONS, ValueError("logprobs is 1000")),
        ("vllm.renderers.hf", ValueError("logprobs is 1000")),
        (GRAMMARS, RuntimeError("logprobs is 1000")),
    ],
)
def test_a_mistake_is_one_line(name: str, error: Exception) -> None:
    assert said(name, error, in_vllm) == f"INFO Request r1 failed. {type(error).__name__}: logprobs is 1000"


def test_a_mistake_reported_by_a_replica_is_one_line() -> None:
    assert said("ray.serve", RequestError("no"), in_serve) == "INFO Request r1 failed. RequestError: no"


@pytest.mark.parametrize(
    ("name", "error", "is_mistake"),
    [
        (COMPLETIONS, RuntimeError("a defect"), in_vllm),
        ("vllm.v1.engine.core", ValueError("a defect"), in_vllm),
        ("ray.serve", ValueError("a defect"), in_serve),
    ],
)
def test_a_defect_keeps_its_traceback(name: str, error: Exception, is_mistake: IsMistake) -> None:
    text = said(name, error, is_mistake)
    assert text.startswith("ERROR Request r1 failed.\nTraceback ")
    assert text.endswith("a defect")


def test_a_line_is_bounded_however_much_a_client_sent() -> None:
    assert len(said(COMPLETIONS, ValueError("x" * 10_000), in_vllm)) < 1100


@pytest.mark.parametrize(("text", "passes"), [("Failed to advance FSM for request %s", False), ("Slow: %s", True)])
def test_a_repeated_message_is_logged_once(text: str, passes: bool) -> None:
    assert OneLine(in_vllm).filter(record_of(f"{GRAMMARS}.backend_xgrammar", text)) is passes


def test_serve_repeats_nothing_that_vllm_has_said() -> None:
    assert not OneLine(in_serve).filter(record_of("ray.serve", "Request %s failed.", GenerationError()))


def test_a_process_shortens_once() -> None:
    logger = logging.Logger("ray.serve")
    shorten(logger, in_serve)
    shorten(logger, in_serve)
    assert len(logger.filters) == 1


def test_loggers_below_vllms_are_shortened() -> None:
    parent = logging.getLogger("vllm")
    shorten_vllm(in_vllm)
    try:
        assert parent.handlers
        assert all(any(isinstance(each, OneLine) for each in handler.filters) for handler in parent.handlers)
    finally:
        for handler in parent.handlers:
            for each in [each for each in handler.filters if isinstance(each, OneLine)]:
                handler.removeFilter(each)
