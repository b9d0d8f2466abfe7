"""The expected charge of a request, before an engine has counted its tokens."""

from types import SimpleNamespace
from typing import Any

import pytest

from peagle.api.clients.request_charge import OUTPUT_TOKENS, Charge, Usage, UsualLengths, charge_of
from peagle.router.fairness.client_terms import Client, ClientClass

CLIENT = Client("c", 2.0)


def charge(usual: float | None = 100.0, **fields: Any) -> Charge:
    return charge_of(CLIENT, "m", SimpleNamespace(**fields), usual)


@pytest.mark.parametrize(
    ("fields", "prompt", "output"),
    [
        ({"prompt": "x" * 400}, 100, 100),
        ({"prompt": "x" * 400, "max_tokens": 7}, 100, 7),
        ({"prompt": "x" * 400, "max_tokens": 1000}, 100, 1000),
        ({"prompt": "x" * 400, "max_tokens": 7, "n": 3}, 100, 21),
        ({"prompt": ["x" * 400, "y" * 40], "max_tokens": 7, "n": 3}, 110, 42),
        ({"prompt": [1, 2, 3], "max_tokens": 7}, 3, 7),
        ({"prompt": [[1, 2, 3], [4, 5]], "max_tokens": 7}, 5, 14),
        ({"prompt": [], "max_tokens": 7}, 0, 7),
        ({"messages": [{"role": "user", "content": "x" * 396}], "max_completion_tokens": 5}, 100, 5),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x" * 392}]}]}, 100, 100),
        ({"input": "x" * 400, "max_output_tokens": 9}, 100, 9),
    ],
)
def test_prompts_go_by_their_length_and_answers_by_their_limit(fields: Any, prompt: int, output: int) -> None:
    found = charge(**fields)
    assert (found.prompt_tokens, found.output_tokens, found.tokens) == (prompt, output, prompt + output)


def test_a_picture_s_bytes_are_no_text() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:" + "x" * 4000}}
    assert charge(messages=[{"role": "user", "content": [part]}]).prompt_tokens < 10


def test_what_does_not_generate_takes_no_tokens() -> None:
    assert charge(usual=None, prompt="x" * 400).tokens == 0


def test_a_request_may_ask_for_the_lower_class_and_for_no_other() -> None:
    assert charge(prompt="x", service_tier="flex").client.class_ is ClientClass.BATCH
    assert charge(prompt="x", service_tier="priority").client.class_ is ClientClass.INTERACTIVE
    batch = Client("b", class_=ClientClass.BATCH)
    body = SimpleNamespace(prompt="x", service_tier="priority")
    assert charge_of(batch, "m", body, 1.0).client.class_ is ClientClass.BATCH


def test_a_usual_answer_is_the_mean_of_those_seen() -> None:
    lengths, seen = UsualLengths(), charge(prompt="x", n=2)
    assert lengths.of("m") == OUTPUT_TOKENS
    lengths.saw(seen)
    assert lengths.of("m") == OUTPUT_TOKENS
    seen.used = Usage(output=40)
    for _ in range(1000):
        lengths.saw(seen)
    assert lengths.of("m") == pytest.approx(20, abs=0.1)
    assert lengths.of("another") == OUTPUT_TOKENS
