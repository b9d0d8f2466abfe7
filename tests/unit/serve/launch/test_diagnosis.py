from pathlib import Path

from peagle.serve.launch.diagnosis import LONGEST_CAUSE, root_cause, root_cause_in

LOG = """
(ServeReplica pid=7) INFO 11-20 16:00:00 [core.py:89] Initializing a V1 LLM engine with speculative_config=None
(EngineCore pid=9) ERROR 11-20 16:00:01 [core.py:866] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-20 16:00:01 [core.py:866]   File "cpu_worker.py", line 60, in __init__
(EngineCore pid=9) ERROR 11-20 16:00:01 [core.py:866] ValueError: Available memory on node 0 is less than requested.
(ServeReplica pid=7) RuntimeError: Engine core initialization failed. See root cause above.
(ServeController pid=3) ray.exceptions.RayTaskError(RuntimeError): ray::ServeReplica
"""


def test_the_cause_is_the_first_exception_not_what_followed_from_it() -> None:
    assert root_cause(LOG) == "Available memory on node 0 is less than requested"


def test_what_an_engine_argument_is_refused_for_is_below_two_tracebacks() -> None:
    log = """
(ServeController pid=3) ray.exceptions.RayTaskError(RuntimeError): ray::ServeReplica
(ServeController pid=3)     raise RuntimeError(traceback.format_exc()) from None
(ServeController pid=3) RuntimeError: Traceback (most recent call last):
(ServeController pid=3)   File "replica.py", line 1867, in initialize
(ServeController pid=3) RuntimeError: Failed to create vLLM engine config: 1 validation error for ModelConfig
(ServeController pid=3)   Value error, User-specified max_model_len (9) is too long. [type=value_error, input=...]
(ServeController pid=3)     For further information visit https://errors.pydantic.dev
"""
    assert root_cause(log) == "User-specified max_model_len (9) is too long"


def test_a_log_without_an_exception_has_no_cause() -> None:
    assert root_cause("INFO all is well\nWARNING nearly") is None


def test_colours_and_module_paths_are_taken_off() -> None:
    assert root_cause("\x1b[36m(pid=1)\x1b[0m peagle.errors.StartupError: no head here. Name one.") == (
        "no head here. Name one"
    )


def test_a_long_cause_is_cut_to_one_readable_line() -> None:
    assert len(root_cause("ValueError: " + "x" * 10_000) or "") == LONGEST_CAUSE


def test_a_missing_log_has_no_cause(tmp_path: Path) -> None:
    assert root_cause_in(tmp_path / "absent.log") is None
