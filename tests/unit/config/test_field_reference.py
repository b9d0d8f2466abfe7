"""The page of deployment files has every field, with what it takes, its default and its meaning."""

import pytest

from peagle.config.deployment import Deployment
from peagle.config.field_reference import BEGIN, fields, reference, values_of, written_into
from support.paths import DEPLOYMENTS

PAGE = (DEPLOYMENTS / "README.md").read_text(encoding="utf-8")
SCHEMA = Deployment.model_json_schema()
FIELDS = {path: field for path, field, _ in fields(SCHEMA, SCHEMA["$defs"])}


def test_the_page_is_current() -> None:
    assert written_into(PAGE) == PAGE, "run make fields"


def test_every_field_says_what_it_means() -> None:
    assert [path for path, field in FIELDS.items() if not field.get("description")] == []


def test_fields_of_sections_stand_under_their_section_and_sections_have_no_row() -> None:
    assert {"name", "target.source", "drafter.trained_depth", "engine"} <= FIELDS.keys()
    assert not {"target", "drafter", "speculation", "replicas", "resources", "routing"} & FIELDS.keys()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("speculation.depth_max", "whole number, 1 to 64"),
        ("speculation.inter_token_s_max", "number, above 0 to 60"),
        ("routing.step_tokens_shared", "whole number, 1 to 1,000,000"),
        ("drafter.method", "`p-eagle` or `eagle3`"),
        ("speculation.adaptive", "true or false"),
        ("environment", "fields"),
    ],
)
def test_what_a_field_takes_is_said_in_words(path: str, words: str) -> None:
    assert values_of(FIELDS[path]) == words


def test_a_required_field_and_a_default_are_told() -> None:
    assert "| `target.source` | text | required |" in reference()
    assert "| `replicas.hung_after_s` | number, 5 to 3,600 | 30.0 |" in reference()


def test_only_the_part_between_the_marks_is_written() -> None:
    changed = PAGE.replace(f"{BEGIN}\n", f"{BEGIN}\nold\n")
    assert changed != PAGE
    assert written_into(changed) == PAGE
    with pytest.raises(ValueError, match="substring not found"):
        written_into("a page without marks")
