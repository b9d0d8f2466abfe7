"""Every recipe of `deployments/` can be served unchanged."""

from pathlib import Path

import pytest

from peagle.engine.checks.validate import validate_file
from support.paths import DEPLOYMENTS

RECIPES = sorted(DEPLOYMENTS.glob("*.yaml"))


def test_there_is_a_recipe_for_every_promised_model() -> None:
    promised = {"embedded", "gpt-oss-20b", "gpt-oss-120b", "qwen3-coder-30b-a3b", "gemma-4-31b"}
    assert promised <= {path.stem for path in RECIPES}


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_validates(path: Path) -> None:
    report = validate_file(path)
    assert not report.problems, "\n".join(map(str, report.problems))


def test_every_recipe_serves_its_model_under_its_own_name() -> None:
    names = [report.deployment.name for path in RECIPES if (report := validate_file(path)).deployment is not None]
    assert len(set(names)) == len(RECIPES)


def test_the_embedded_model_is_checked_whole() -> None:
    """It is the one that needs no download, so nothing about it may be left unchecked."""
    report = validate_file(DEPLOYMENTS / "embedded.yaml")
    assert {check.outcome for check in report.checks} == {"ok"}, report.checks
