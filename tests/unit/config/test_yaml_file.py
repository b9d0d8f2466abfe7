"""YAML as a person writes it: what would be guessed, expanded or half read is refused, with its line."""

from collections.abc import Callable
from pathlib import Path

import pytest

from peagle.config.yaml_file import MAX_BYTES, MAX_DEPTH, read_mapping
from peagle.errors import ConfigError

Write = Callable[[str], Path]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("", "", "it is empty"),
        ("# nothing\n", "", "it is empty"),
        ("- a\n", "", "it holds a list"),
        ("hello\n", "", "it holds a str"),
        ("a: 1\nb: 2\na: 3\n", ", line 3", "a stands there twice"),
        ("a: {b: 1, b: 2}\n", ", line 1", "b stands there twice"),
        ("a: &x [1]\nb: *x\n", ", line 2", "the alias *x"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n", ", line 2", "the alias *a"),
        ("a: " + "[" * 500 + "]" * 500, ", line 1", f"more than {MAX_DEPTH} levels"),
        ("a: 1\nb: [1\n", ", line 3", "it is not YAML"),
        ("a:\n\tb: 1\n", ", line 2", "it is not YAML"),
        ("a: 1\n---\na: 2\n", ", line 2", "another document"),
        ("a: !!python/object/apply:os.system [ls]\n", ", line 1", "it is not YAML"),
        ("a: \x01\n", "", "it is not YAML"),
        ("? [a]\n: 1\n", ", line 1", "it is not YAML"),
        ("a: " + "9" * 5000, "", "it is not YAML"),
        ("a: !!bool maybe", "", "not of the kind that the tag"),
        ("a: !!int ''", "", "not of the kind that the tag"),
        ("a: !!timestamp z", "", "not of the kind that the tag"),
    ],
)
def test_what_is_no_plain_mapping_is_refused(deployment_file: Write, text: str, place: str, words: str) -> None:
    path = deployment_file(text)
    with pytest.raises(ConfigError) as caught:
        read_mapping(path)
    assert str(caught.value).startswith(f"{path}{place}: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mapping_is_read_with_a_byte_order_mark_too(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: {b: [1, 2.5, true, null, text]}\n")
    assert read_mapping(path) == {"a": {"b": [1, 2.5, True, None, "text"]}}


@pytest.mark.parametrize("content", [b"name: \xe9\n", "name: x".encode("utf-16")])
def test_another_encoding_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"is not UTF-8\. Save it as UTF-8\."):
        read_mapping(path)


def test_a_huge_file_is_not_parsed(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(ConfigError, match="larger than"):
        read_mapping(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (".", "it is a folder"),
        ("missing.yaml", "no such file"),
        ("a\0b", "cannot be read"),
        ("x" * 300, "cannot be read"),
    ],
)
def test_what_is_no_file_is_named(tmp_path: Path, name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_mapping(tmp_path / name)
