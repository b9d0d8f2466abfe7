"""Properties that a dispatcher reads from a request: lengths, and a key for shared prefixes."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from peagle.api.clients.request_charge import CHARS_PER_TOKEN, OUTPUT_TOKENS
from peagle.router.snapshot import RouteRequest
from peagle.serve.routing.route_request import request_kinds, route_request

SYSTEM = "You are a careful assistant. " * 60
LONG = "Tell me about lists. " * 20


@dataclass
class Chat:
    messages: list[Any]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None


@dataclass
class Completion:
    prompt: Any
    max_tokens: int | None = 16


@dataclass
class Bodyless:
    tokens: list[int] = field(default_factory=list)


def said(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_a_conversation_keeps_its_key_as_it_grows_and_shares_what_came_before() -> None:
    first = route_request("1", Chat([said("user", LONG)]))
    later = route_request("2", Chat([said("user", LONG), said("assistant", "A list."), said("user", "And sets?")]))
    assert first.affinity_key == later.affinity_key
    assert first.affinity_key is not None
    assert first.prefix_tokens == 0
    assert later.prefix_tokens == (len(LONG) + len("A list.")) // CHARS_PER_TOKEN
    assert later.prompt_tokens == (len(LONG) + len("A list.") + len("And sets?")) // CHARS_PER_TOKEN


def test_a_long_system_prompt_is_shared_by_all_who_have_it() -> None:
    one, other = (route_request("", Chat([said("system", SYSTEM), said("user", text)])) for text in ("a", "b"))
    assert one.affinity_key == other.affinity_key
    assert one.prefix_tokens == len(SYSTEM) // CHARS_PER_TOKEN


def test_under_a_long_system_prompt_a_conversation_shares_that_and_once_it_outgrows_it_is_its_own() -> None:
    def turn(about: str, said_before: str) -> RouteRequest:
        messages = [said("system", SYSTEM), said("user", about), said("assistant", said_before), said("user", "go on")]
        return route_request("", Chat(messages))

    young, old, other = turn("a", "x" * 1000), turn("a", "x" * 20_000), turn("b", "x" * 20_000)
    assert young.affinity_key == route_request("", Chat([said("system", SYSTEM), said("user", "a")])).affinity_key
    assert young.prefix_tokens == len(SYSTEM) // CHARS_PER_TOKEN
    assert old.affinity_key == turn("a", "x" * 30_000).affinity_key
    assert len({young.affinity_key, old.affinity_key, other.affinity_key}) == 3
    assert old.prefix_tokens == (len(SYSTEM) + 1 + 20_000) // CHARS_PER_TOKEN


def test_short_beginnings_and_different_ones_are_not_put_together() -> None:
    assert route_request("", Chat([said("user", "hi")])).affinity_key is None
    assert route_request("", Chat([said("user", "hi")])).prefix_tokens == 0
    one, other = (route_request("", Completion(LONG + text * 1000)) for text in "ab")
    assert one.affinity_key != other.affinity_key


def test_a_session_belongs_together_whatever_it_says() -> None:
    one, other = (route_request("", Completion(text), session_id="s") for text in ("a", "b"))
    assert one.affinity_key == other.affinity_key
    assert one.affinity_key is not None


@pytest.mark.parametrize(
    ("prompt", "tokens"),
    [("x" * 400, 100), ([5] * 300, 300), (["x" * 400, "y" * 40], 110), ([[5] * 300, [6] * 10], 310), ("", 0), ([], 0)],
)
def test_every_form_of_prompt_is_measured(prompt: Any, tokens: int) -> None:
    assert route_request("", Completion(prompt)).prompt_tokens == tokens


def test_token_ids_that_begin_alike_share_a_key() -> None:
    one, other = (route_request("", Completion([7] * 300 + [last])) for last in (1, 2))
    assert one.affinity_key == other.affinity_key
    assert one.prefix_tokens == 256


def test_of_parts_only_texts_count() -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:" + "x" * 9999}}
    body = Chat([said("user", [picture, {"type": "text", "text": "y" * 40}]), said("tool", None)])
    assert route_request("", body).prompt_tokens == 40 // CHARS_PER_TOKEN


@pytest.mark.parametrize(
    ("body", "usual", "tokens"),
    [
        (Completion("x", max_tokens=9), 50.0, 9),
        (Completion("x", max_tokens=900), 50.0, 50),
        (Chat([said("user", "x")], max_completion_tokens=7), 50.0, 7),
        (Chat([said("user", "x")]), 50.0, 50),
        (Completion("x", max_tokens=0), 50.0, 1),
        (Bodyless(), float(OUTPUT_TOKENS), OUTPUT_TOKENS),
        (None, float(OUTPUT_TOKENS), OUTPUT_TOKENS),
    ],
)
def test_an_answer_is_as_long_as_usual_or_as_the_limit_lets_it_be(body: Any, usual: float, tokens: int) -> None:
    assert route_request("", body, usual_output_tokens=usual).output_tokens == tokens


def test_requests_of_one_system_prompt_are_of_a_kind_whatever_is_asked() -> None:
    first = Chat([said("system", SYSTEM), said("user", "Sort this.")])
    other = Chat([said("system", [{"type": "text", "text": SYSTEM}]), said("user", LONG)])
    assert request_kinds(first) == request_kinds(other)
    assert request_kinds(first) != request_kinds(Chat([said("system", "Be brief."), said("user", "Sort this.")]))


def test_a_client_s_name_is_its_second_kind_and_the_only_one_without_a_system_prompt() -> None:
    told, plain = Chat([said("system", SYSTEM), said("user", LONG)]), Completion("Once upon a time")
    system, client = request_kinds(told, "ann")
    assert request_kinds(plain, "ann") == (client,)
    assert request_kinds(told) == (system,)
    assert request_kinds(plain) == request_kinds(Bodyless()) == request_kinds(None) == ()
    assert request_kinds(plain, SYSTEM) != (system,)
