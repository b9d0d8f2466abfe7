"""Prompts from a JSON Lines file, in the formats of public prompt sets."""

import json
from pathlib import Path
from typing import Any

from peagle.errors import ConfigError

Message = dict[str, str]
"""One message of a chat: its `role` and its `content`."""
Prompt = str | list[Message]
"""Text to complete, or a chat to answer."""

FORMS = 'Write {"prompt": "..."}, {"turns": ["..."]} or {"messages": [{"role": "user", "content": "..."}]}.'


def read_prompt_file(path: Path, *, as_chat: bool = False) -> list[Prompt]:
    """Read the prompts of a file; with `as_chat`, text becomes a user message.

    Each line is an object with `prompt` (HumanEval and custom files), `turns` (MT-Bench, Spec-Bench; the first turn is
    used) or `messages` (SPEED-Bench and OpenAI's format; the messages before the first answer are used). Other fields
    are ignored.

    Raises ConfigError if the file cannot be read or has no prompt, or if a line has another format.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"it cannot be read ({error})"
        raise ConfigError("--prompts-from", str(path), problem, "Name a JSON Lines file.") from None
    prompts = []
    # JSON strings may contain characters that Python's splitlines takes for line ends.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        prompt = _prompt_in(line)
        if prompt is None:
            raise ConfigError(f"{path}:{number}", line[:60], "it has no prompt", FORMS)
        prompts.append(in_chat_form(prompt) if as_chat else prompt)
    if not prompts:
        raise ConfigError("--prompts-from", str(path), "it is empty", FORMS)
    return prompts


def in_chat_form(prompt: Prompt) -> list[Message]:
    """Return `prompt` as a chat; text becomes a user message."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def encode_prompt(prompt: Prompt, tokenizer: Any) -> list[int]:
    """Return the tokens of a prompt; a chat is rendered with the chat template of this Hugging Face `tokenizer`.

    Raises ConfigError if the prompt is a chat and the tokenizer has no template, or the template refuses it.
    """
    if isinstance(prompt, str):
        return list(tokenizer.encode(prompt))
    if not getattr(tokenizer, "chat_template", None):
        problem = "the target's tokenizer has no chat template"
        raise ConfigError("--prompts-from", "a chat", problem, 'Write {"prompt": "..."} lines of plain text.')
    from jinja2 import TemplateError  # only chat templates need it

    try:
        return list(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False))
    except TemplateError as error:  # some refuse system messages, or require a fixed order of roles
        problem = f"the target's chat template refuses a chat of {', '.join(each['role'] for each in prompt)}: {error}"
        raise ConfigError(
            "--prompts-from", "a chat", problem, "Write its messages in the form that this model accepts."
        ) from None


def _prompt_in(line: str) -> Prompt | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    turns, messages = value.get("turns"), value.get("messages")
    text = turns[0] if isinstance(turns, list) and turns else value.get("prompt")
    if isinstance(text, str) and text:
        return in_chat_form(text) if turns else text
    return _asked(messages) if isinstance(messages, list) else None


def _asked(messages: list[Any]) -> list[Message] | None:
    """Return the messages before the first answer; None if there are none or one is not text."""
    asked: list[Message] = []
    for message in messages:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role == "assistant":
            break
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        asked.append({"role": role, "content": content})
    return asked or None
