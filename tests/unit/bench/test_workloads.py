"""Prompts come from JSON lines, and a wrong line is named."""

from pathlib import Path

import pytest

from peagle.bench.workloads import read_prompts
from peagle.errors import ConfigError


def test_prompts_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": "b\\nc"}\n', encoding="utf-8")
    assert read_prompts(path) == ["a", "b\nc"]


@pytest.mark.parametrize("line", ["{", '{"text": "a"}', '{"prompt": 3}', '{"prompt": ""}', "[]"])
def test_a_line_without_a_prompt_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{line}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prompts\.jsonl:2"):
        read_prompts(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"absent\.jsonl"):
        read_prompts(tmp_path / "absent.jsonl")
