"""Which vLLM releases are supported."""

import pytest

from peagle.engine.versions import KNOWN_TEXT, is_known


@pytest.mark.parametrize(
    ("version", "known"), [("0.29.0", True), ("0.29.1.dev3", True), ("0.2.9", False), ("0.33.1", False)]
)
def test_a_release_is_known_by_its_first_two_numbers(version: str, known: bool) -> None:
    assert is_known(version) is known
    assert KNOWN_TEXT == "0.29.x"
