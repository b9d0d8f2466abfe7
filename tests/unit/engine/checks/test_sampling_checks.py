"""A drafter that would only draft for greedy requests is reported, wherever the default comes from."""

import json
from typing import Any

import pytest

from peagle.config import parse_deployment
from peagle.engine.checks.sampling_checks import examine_sampling
from peagle.engine.checks.validate import validate_file
from support.paths import DEPLOYMENTS

MODELS = {"min_p": 0.1, "temperature": 0.7}


def cautions(pair: Any, engine: dict[str, Any], **changes: Any) -> list[str]:
    """Return the cautions for a deployment whose model's defaults are `MODELS`."""
    pair.target.files["generation_config.json"] = json.dumps(MODELS)
    checks = examine_sampling(parse_deployment(pair.raw(engine=engine, **changes), "tiny.yaml"))
    assert {check.outcome for check in checks} <= {"caution"}
    return [check.detail for check in checks]


@pytest.mark.parametrize("engine", [{}, {"generation_config": "auto"}, {"override_generation_config": {"top_p": 0.9}}])
def test_a_default_of_the_model_is_reported_with_the_fix(pair: Any, engine: dict[str, Any]) -> None:
    (said,) = cautions(pair, engine)
    assert said.startswith("min_p is 0.1 by default, and a sampled request with min_p gets no drafts. ")
    assert "engine.override_generation_config: {min_p: 0}" in said


def test_a_default_of_the_deployment_is_reported(pair: Any) -> None:
    (said,) = cautions(pair, {"generation_config": "vllm", "override_generation_config": {"min_p": 0.2}})
    assert said.startswith("min_p is 0.2 by default")


@pytest.mark.parametrize("engine", [{"generation_config": "vllm"}, {"override_generation_config": {"min_p": 0}}])
def test_a_disabled_default_is_not_reported(pair: Any, engine: dict[str, Any]) -> None:
    assert cautions(pair, engine) == []


def test_nothing_is_reported_without_a_drafter(pair: Any) -> None:
    assert cautions(pair, {}, speculation={"enabled": False}) == []


def test_a_file_that_is_no_json_is_left_to_the_engine(pair: Any) -> None:
    pair.target.files["generation_config.json"] = "{"
    assert examine_sampling(pair.deployment()) == ()


def test_validate_shows_it_and_lets_it_pass(pair: Any, tmp_path: Any) -> None:
    pair.target.files["generation_config.json"] = json.dumps(MODELS)
    path = tmp_path / "tiny.yaml"
    path.write_text(json.dumps(pair.raw()))
    report = validate_file(path)
    assert not report.problems
    assert [check.name for check in report.checks if check.outcome == "caution"] == ["sampling"]


def test_the_embedded_model_drafts_for_every_request() -> None:
    checks = validate_file(DEPLOYMENTS / "embedded.yaml").checks
    assert not [check for check in checks if check.outcome == "caution"]
