"""What vLLM says of a request, in words of those who can mend it: fields of the request, or of the deployment file.

vLLM's own server is started with options and variables. Here an option is a field below `engine` of the deployment
file, and a variable one below `environment`.
"""

import re
from collections.abc import Mapping

# vLLM repeats the field, and quotes its value whole, at the end of a message.
REPEATED = re.compile(r" \(parameter=.*\)$", re.DOTALL)

# Where its parser of grammars stands in its own source.
_LOG_PREFIX = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)\b")
_VARIABLE = re.compile(r"\bVLLM_[A-Z0-9_]+\b")
_OPERATORS = "engine.… and environment.… are fields of the deployment file, for who runs this server."
# Sentences that name no field, or one that nobody can write here: what vLLM says, and what is said instead.
_SENTENCES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r'^"auto" tool choice requires .*', re.DOTALL),
        "tools: the model may call tools only where engine.tool_call_parser names how it writes a call, and "
        "engine.enable_auto_tool_choice is true.",
    ),
    (
        re.compile(r"^tool_choice=(.*) requires .*", re.DOTALL),
        r"tool_choice: \1 needs engine.tool_call_parser, which names how the model writes a call, and "
        "engine.enable_auto_tool_choice: true.",
    ),
    (
        re.compile(r"^Chat template is passed with request, but .*", re.DOTALL),
        "chat_template: templates of requests are taken only where engine.trust_request_chat_template is true.",
    ),
    (
        re.compile(
            r"^(The `logits_processors` argument|Logits processor '.*') is not .* by this server\..*", re.DOTALL
        ),
        "logits_processors is not supported: this server takes no code from requests.",
    ),
)


def in_our_words(message: str, fields: Mapping[str, str] | None = None) -> str:
    """Say what vLLM's `message` says with the names that a client or an operator would write.

    `fields` is what the request's route calls fields that vLLM knows by another name.
    """
    message = _LOG_PREFIX.sub("", REPEATED.sub("", message))
    for said, instead in _SENTENCES:
        message = said.sub(instead, message)
    message = _OPTION.sub(lambda option: f"engine.{option[1].replace('-', '_')}", message)
    message = _VARIABLE.sub(lambda variable: f"environment.{variable[0]}", message)
    for theirs, ours in (fields or {}).items():
        # A name of one word may be a word of the sentence.
        message = re.sub(rf"\b{theirs}\b" if "_" in theirs else f"(?<=`){theirs}(?=`)", ours, message)
    if re.search(r"\b(?:engine\.[a-z]|environment\.VLLM_)", message):
        message = f"{message.rstrip('. ')}. {_OPERATORS}"
    return message
