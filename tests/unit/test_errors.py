"""The error tree: what a person reads, and what survives a process boundary."""

import pickle

import pytest

from peagle.errors import (
    ClusterError,
    CombinedConfigError,
    ConfigError,
    NotFoundError,
    OverloadedError,
    PeagleError,
    ReplicaLostError,
    RequestError,
    RouterLostError,
    StartupError,
    TooLargeError,
)

WRONG_MAX = ConfigError("replicas.max", 1, "it is below min, which is 3", "Write 3 or more.")
WRONG_NAME = ConfigError("name", None, "it is required", "Add it.")

EVERY_ERROR = [
    PeagleError("broken"),
    WRONG_MAX,
    CombinedConfigError(WRONG_MAX, WRONG_NAME),
    StartupError("port 8000 is in use", "Pass another --port."),
    ClusterError(0, "list nodes", "connection refused"),
    ClusterError(401, "list nodes", "Unauthorized"),
    ClusterError(403, "list nodes", "nodes is forbidden"),
    ClusterError(500, "list nodes", "etcd\nis slow"),
    RequestError("n must be at least 1", param="n", code="invalid_value"),
    NotFoundError("no such model", code="model_not_found"),
    TooLargeError("the body is too large"),
    OverloadedError("the queue is full", retry_after_s=1.5),
    ReplicaLostError("the replica ended"),
    RouterLostError("the Router does not answer"),
]


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
def test_every_error_survives_pickling(error: PeagleError) -> None:
    restored = pickle.loads(pickle.dumps(error))
    assert type(restored) is type(error)
    assert str(restored) == str(error)
    assert vars(restored).keys() == vars(error).keys()


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: type(error).__name__)
def test_every_error_is_one_line_for_each_problem(error: PeagleError) -> None:
    lines = len(error.problems) if isinstance(error, ConfigError) else 1
    assert len(str(error).splitlines()) == lines
    assert 400 <= error.http_status < 600


def test_a_config_error_names_field_value_problem_and_fix() -> None:
    assert str(WRONG_MAX) == "replicas.max = 1: it is below min, which is 3. Write 3 or more."


def test_a_config_error_without_a_value_shows_none() -> None:
    assert str(WRONG_NAME) == "name: it is required. Add it."


def test_several_problems_are_several_lines_and_keep_their_order() -> None:
    both = CombinedConfigError.of([WRONG_MAX, WRONG_NAME])
    assert str(both).splitlines() == [str(WRONG_MAX), str(WRONG_NAME)]
    assert both.problems == (WRONG_MAX, WRONG_NAME)
    assert (both.field, both.value) == ("replicas.max", 1)


def test_one_problem_stays_itself() -> None:
    assert CombinedConfigError.of([WRONG_MAX]) is WRONG_MAX


def test_an_origin_leads_the_field_of_every_problem() -> None:
    both = CombinedConfigError(WRONG_MAX, WRONG_NAME).under("a.yaml")
    assert [problem.field for problem in both.problems] == ["a.yaml: replicas.max", "a.yaml: name"]


def test_a_long_value_is_shortened() -> None:
    assert len(str(ConfigError("name", "x" * 10_000, "it is too long", "Shorten it."))) < 300


def test_what_comes_from_outside_cannot_break_out_of_its_line() -> None:
    message = str(ConfigError("a\nb\x1b[31m", "c\nd", "e\nf", "g"))
    assert message == "a\\nb\\x1b[31m = 'c\\nd': e\\nf. g"
