"""Prompts from a file of JSON lines, one to a line, in the forms that public sets of prompts have."""

import json
from pathlib import Path
from typing import Any

from peagle.errors import ConfigError

Message = dict[str, str]
"""One message of a chat: its `role` and its `content`."""
Prompt = str | list[Message]
"""Text to go on with, or a chat to answer."""

FORMS = 'Write {"prompt": "..."}, {"turns": ["..."]} or {"messages": [{"role": "user", "content": "..."}]}.'


def read_prompt_file(path: Path, *, as_chat: bool = False) -> list[Prompt]:
    """Read the prompts of a file; with `as_chat` a text is what a user says.

    A line is an object with one of `prompt` (HumanEval and files of one's own), `turns` (MT-Bench, Spec-Bench; the
    first is asked) or `messages` (SPEED-Bench and OpenAI's form; those before the first answer are asked). What else it
    holds is left alone.

    Raises ConfigError where the file cannot be read, holds no prompt, or a line is no such object.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        problem = f"it cannot be read ({error})"
        raise ConfigError("--prompts-from", str(path), problem, "Name a file of JSON lines.") from None
    prompts = []
    # JSON may hold what Python takes for the end of a line, too.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        prompt = _prompt_in(line)
        if prompt is None:
            raise ConfigError(f"{path}:{number}", line[:60], "it holds no prompt", FORMS)
        prompts.append(in_chat_form(prompt) if as_chat else prompt)
    if not prompts:
        raise ConfigError("--prompts-from", str(path), "it is empty", FORMS)
    return prompts


def in_chat_form(prompt: Prompt) -> list[Message]:
    """The chat that `prompt` is, or begins as what a user says."""
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt


def encode_prompt(prompt: Prompt, tokenizer: Any) -> list[int]:
    """Tokens of a prompt; of a chat, as the chat template of this Hugging Face `tokenizer` writes it for an answer.

    Raises ConfigError where it is a chat, and there is no template, or it refuses this one.
    """
    if isinstance(prompt, str):
        return list(tokenizer.encode(prompt))
    if not getattr(tokenizer, "chat_template", None):
        problem = "the target's tokenizer has no chat template"
        raise ConfigError("--prompts-from", "a chat", problem, 'Write {"prompt": "..."} lines of plain text.')
    from jinja2 import TemplateError  # what reads templates; nothing else here needs it

    try:
        return list(tokenizer.apply_chat_template(prompt, add_generation_prompt=True, tokenize=True, return_dict=False))
    except TemplateError as error:  # some take no system message, or roles in one order only
        problem = f"the target's chat template refuses a chat of {', '.join(each['role'] for each in prompt)}: {error}"
        raise ConfigError("--prompts-from", "a chat", problem, "Write its messages as that model takes them.") from None


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
    """The messages before the first answer; None where there is none, or one is not of text."""
    asked: list[Message] = []
    for message in messages:
        role, content = (message.get("role"), message.get("content")) if isinstance(message, dict) else (None, None)
        if role == "assistant":
            break
        if not isinstance(role, str) or not isinstance(content, str):
            return None
        asked.append({"role": role, "content": content})
    return asked or None
