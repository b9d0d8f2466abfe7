"""Files of prompts are read in the forms that public sets have, and a wrong line is named."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from peagle.errors import ConfigError
from peagle.prompt_file import encode_prompt, read_prompt_file
from support.paths import EMBEDDED

EMBEDDED = EMBEDDED / "target"


def write(path: Path, *lines: Any) -> Path:
    path.write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines), encoding="utf-8")
    return path


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def test_prompts_are_read_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "prompts.jsonl", {"prompt": "a"}, {"task_id": "HumanEval/0", "prompt": "b\nc\u2028d"})
    assert read_prompt_file(path) == ["a", "b\nc\u2028d"]


def test_a_chat_is_asked_up_to_its_first_answer(tmp_path: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    chat = [system, user("Why?"), {"role": "assistant", "content": "Because."}, user("Why?")]
    path = write(
        tmp_path / "chats.jsonl",
        {"question_id": 81, "category": "writing", "turns": ["First.", "Second."]},
        {"messages": chat, "category": "qa"},
    )
    assert read_prompt_file(path) == [[user("First.")], [system, user("Why?")]]


def test_a_text_becomes_a_chat_where_that_is_asked_for(tmp_path: Path) -> None:
    path = write(tmp_path / "prompts.jsonl", {"prompt": "a"}, {"turns": ["b"]})
    assert read_prompt_file(path, as_chat=True) == [[user("a")], [user("b")]]


@pytest.mark.parametrize(
    "line",
    [
        "{", '{"text": "a"}', '{"prompt": 3}', '{"prompt": ""}', "[]", '{"turns": []}', '{"turns": [3]}',
        '{"messages": []}', '{"messages": [{"role": "assistant", "content": "a"}]}', '{"messages": ["a"]}',
        '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}',
    ],
)  # fmt: skip
def test_a_line_without_a_prompt_is_named_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n\n{line}\n', encoding="utf-8")
    with pytest.raises(ConfigError, match=r"prompts\.jsonl:3"):
        read_prompt_file(path)


@pytest.mark.parametrize("content", [None, b"", b"\n", b"\xff"])
def test_a_file_without_prompts_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "some.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=r"some\.jsonl"):
        read_prompt_file(path)


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", {"prompt": "a"})
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read_prompt_file(path) == ["a"]


def test_a_line_nested_without_end_holds_no_prompt(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("[" * 100_000)
    with pytest.raises(ConfigError, match=r"x\.jsonl:1.*it has no prompt"):
        read_prompt_file(tmp_path / "x.jsonl")


def test_a_chat_is_encoded_by_the_chat_template() -> None:
    tokenizer = AutoTokenizer.from_pretrained(EMBEDDED)
    text = tokenizer.apply_chat_template([user("import os")], add_generation_prompt=True, tokenize=False)
    assert encode_prompt([user("import os")], tokenizer) == tokenizer.encode(text)
    assert encode_prompt("import os", tokenizer) == tokenizer.encode("import os")
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(ConfigError, match="refuses a chat of user: roles must alternate"):
        encode_prompt([user("import os")], tokenizer)
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match="chat template"):
        encode_prompt([user("import os")], tokenizer)
