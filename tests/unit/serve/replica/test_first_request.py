"""An engine's first requests match what its model can answer."""

from collections.abc import AsyncGenerator
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.errors import ConfigError
from peagle.serve.replica.first_request import answer_once


class Engine:
    def __init__(self, runner: str, tokenizer: object = "any") -> None:
        self.tokenizer = tokenizer
        self.model_config = SimpleNamespace(runner_type=runner, get_pooling_task=lambda tasks: tasks[0])
        self.asked: list[Any] = []

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("classify",)

    async def _answer(self, prompt: Any, params: Any, request_id: str) -> AsyncGenerator[int, None]:
        follows_grammar = getattr(params, "structured_outputs", None) is not None
        self.asked.append("grammar" if follows_grammar else getattr(params, "task", "generate"))
        yield 1

    generate = encode = _answer


@pytest.mark.parametrize(
    ("engine", "pools", "asked"),
    [
        (Engine("generate"), False, ["generate", "grammar"]),
        (Engine("generate", tokenizer=None), False, ["generate"]),
        (Engine("pooling"), True, ["classify"]),
    ],
    ids=["generates", "without a tokenizer", "classifies"],
)
async def test_it_is_asked_for_what_its_model_does(engine: Engine, pools: bool, asked: list[str]) -> None:
    await answer_once(engine, pools)
    assert engine.asked == asked


async def test_a_file_that_does_not_say_that_its_model_embeds_is_told_to() -> None:
    with pytest.raises(ConfigError, match=r"engine\.runner: .*Write engine\.runner: pooling"):
        await answer_once(Engine("pooling"), False)
