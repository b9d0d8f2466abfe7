"""Properties of an OpenAI request that a dispatcher uses: lengths, and its possibly shared prefix."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from peagle.api.clients.request_charge import CHARS_PER_TOKEN, OUTPUT_TOKENS
from peagle.router.dispatch import affinity_key
from peagle.router.snapshot import RouteRequest

# Requests that share this many leading characters belong together; a shorter prefix saves too little.
PREFIX_CHARS, PREFIX_CHARS_MIN = 1024, 128


def route_request(
    request_id: str,
    body: Any,
    session_id: str = "",
    usual_output_tokens: float = OUTPUT_TOKENS,
    tried: frozenset[str] = frozenset(),
) -> RouteRequest:
    """Read the relevant properties of a request's body of any kind; without a prompt the lengths are 0.

    Args:
        request_id: Unique among open requests.
        body: vLLM's request model of a chat, a completion or a tokenization.
        session_id: The client's conversation id, if any.
        usual_output_tokens: Usual length of an answer; the request's own limit may be lower.
        tried: Replicas that have already failed it.
    """
    messages = getattr(body, "messages", None)
    if messages:
        chars, shared, beginning = _of_messages(messages, bool(session_id))
    else:
        chars, shared, beginning = _of_prompt(getattr(body, "prompt", None))
    if session_id:
        key: int | None = affinity_key(session_id)
    else:
        key = affinity_key(beginning) if len(beginning) >= PREFIX_CHARS_MIN else None
    limits = (getattr(body, name, None) for name in ("max_completion_tokens", "max_tokens"))
    limit = min((each for each in limits if each is not None), default=usual_output_tokens)
    return RouteRequest(
        request_id=request_id,
        prompt_tokens=chars // CHARS_PER_TOKEN,
        output_tokens=max(1, int(min(limit, usual_output_tokens))),
        affinity_key=key,
        prefix_tokens=shared // CHARS_PER_TOKEN if key is not None else 0,
        tried=tried,
    )


def request_kinds(body: Any, client: str = "") -> tuple[int, ...]:
    """Return the keys under which a request's acceptance is remembered, most specific first: system prompt, client."""
    parts = [getattr(body, "system", None), getattr(body, "instructions", None)]
    for message in getattr(body, "messages", None) or ():
        if _field(message, "role") not in ("system", "developer"):
            break
        parts.append(_field(message, "content"))
    system = "\n".join(text for part in parts for text in _texts(part))
    named = ("system", system), ("client", client)
    return tuple(affinity_key(f"{kind}: {name}") for kind, name in named if name)


def _of_messages(messages: Sequence[Any], has_session: bool) -> tuple[int, int, str]:
    """Return the characters of a conversation, those shared with others of the same key, and its beginning.

    The beginning ends with the user's first message, so that a conversation keeps its key as it grows. A long beginning
    is truncated, so that conversations with the same system prompt share a key, and only that prompt. Once the later
    messages outgrow it, the conversation gets its own key.
    """
    texts = [(_field(message, "role"), "".join(_texts(_field(message, "content")))) for message in messages]
    users = [index for index, (role, _) in enumerate(texts) if role == "user"] or [0]
    lengths = [len(text) for _, text in texts]
    beginning = "\n".join(f"{role}: {text}" for role, text in texts[: users[0] + 1])
    common, history = max(PREFIX_CHARS, sum(lengths[: users[0]])), sum(lengths[: users[-1]])
    if has_session or len(beginning) <= PREFIX_CHARS or history > 2 * common:
        return sum(lengths), history, beginning
    return sum(lengths), min(history, common), beginning[:PREFIX_CHARS]


def _of_prompt(prompt: Any) -> tuple[int, int, str]:
    """Return the same for a completion's prompt: a text, token ids, or a list of either, whose first item counts."""
    if isinstance(prompt, str):
        return len(prompt), min(len(prompt), PREFIX_CHARS), prompt[:PREFIX_CHARS]
    if not isinstance(prompt, Sequence) or not prompt:
        return 0, 0, ""
    if isinstance(prompt[0], int):
        chars, first = len(prompt) * CHARS_PER_TOKEN, prompt[: PREFIX_CHARS // CHARS_PER_TOKEN]
        return chars, len(first) * CHARS_PER_TOKEN, " ".join(map(str, first))
    parts = [_of_prompt(part) for part in prompt]
    return sum(part[0] for part in parts), parts[0][1], parts[0][2]


def _texts(content: Any) -> Iterator[str]:
    """Yield the texts of a message's content: a text, or content parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Sequence):
        for part in content:
            text = part if isinstance(part, str) else _field(part, "text")
            if isinstance(text, str):
                yield text


def _field(value: Any, name: str) -> Any:
    return value.get(name) if isinstance(value, Mapping) else getattr(value, name, None)
