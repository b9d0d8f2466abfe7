"""vLLM's messages about a request, with the field names that a client or an operator can change.

vLLM's messages name command line options and environment variables of its own server. Here, an option is a field below
`engine` of the deployment file, and a variable is a field below `environment`.
"""

import re
from collections.abc import Mapping

# vLLM repeats the field and quotes its whole value at the end of a message.
REPEATED = re.compile(r" \(parameter=.*\)$", re.DOTALL)

# Source location that vLLM's grammar parser prints.
_LOG_PREFIX = re.compile(r"\[\d\d:\d\d:\d\d\] \S+:\d+: ")
_OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9]*(?:-[a-z0-9]+)*)\b")
_VARIABLE = re.compile(r"\bVLLM_[A-Z0-9_]+\b")
_OPERATORS = "engine.… and environment.… are fields of the deployment file, set by the server's operator."
# vLLM's sentences that name no field, or a field that does not exist here, and their replacements.
_SENTENCES: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(r'^"auto" tool choice requires .*', re.DOTALL),
        "tools: the model may call tools only if engine.tool_call_parser names its tool call format and "
        "engine.enable_auto_tool_choice is true.",
    ),
    (
        re.compile(r"^tool_choice=(.*) requires .*", re.DOTALL),
        r"tool_choice: \1 needs engine.tool_call_parser, which names the model's tool call format, and "
        "engine.enable_auto_tool_choice: true.",
    ),
    (
        re.compile(r"^Chat template is passed with request, but .*", re.DOTALL),
        "chat_template: templates in requests are accepted only if engine.trust_request_chat_template is true.",
    ),
    (
        re.compile(
            r"^(The `logits_processors` argument|Logits processor '.*') is not .* by this server\..*", re.DOTALL
        ),
        "logits_processors is not supported: this server does not run code from requests.",
    ),
)


def in_our_words(message: str, fields: Mapping[str, str] | None = None) -> str:
    """Rewrite vLLM's `message` with the field names of the request and the deployment file.

    `fields` maps vLLM's field names to those of the request's route.
    """
    message = _LOG_PREFIX.sub("", REPEATED.sub("", message))
    for said, instead in _SENTENCES:
        message = said.sub(instead, message)
    message = _OPTION.sub(lambda option: f"engine.{option[1].replace('-', '_')}", message)
    message = _VARIABLE.sub(lambda variable: f"environment.{variable[0]}", message)
    for theirs, ours in (fields or {}).items():
        # A one-word name may also be an ordinary word of the sentence.
        message = re.sub(rf"\b{theirs}\b" if "_" in theirs else f"(?<=`){theirs}(?=`)", ours, message)
    if re.search(r"\b(?:engine\.[a-z]|environment\.VLLM_)", message):
        message = f"{message.rstrip('. ')}. {_OPERATORS}"
    return message
