"""What of a request is tried: exactly what vLLM's engine core will have xgrammar compile, once it has validated it.

And what becomes of a grammar that the engine gives up.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from peagle.api.api_settings import GrammarSettings
from peagle.engine.grammars.trials import Grammar
from support.paths import REPOSITORY


@pytest.mark.parametrize(
    ("asked", "kind"),
    [
        ({"json": {"type": "object"}}, "json"),
        ({"json": '{"type": "object"}'}, "json"),
        ({"regex": "[0-9]{3}"}, "regex"),
        ({"choice": ["a", 'b "quoted"']}, "grammar"),
        ({"grammar": 'root ::= "a"'}, "grammar"),
        ({"grammar": 'start: "a" | "b"'}, "grammar"),
        ({"structural_tag": '{"structures": [], "triggers": []}'}, "structural_tag"),
    ],
    ids=["schema", "schema as text", "pattern", "choice", "rules", "lark", "tag"],
)
def test_what_is_tried_is_what_the_engine_core_compiles(asked: dict[str, Any], kind: str) -> None:
    pytest.importorskip("vllm")
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams
    from vllm.v1.structured_output.backend_xgrammar import validate_xgrammar_grammar
    from vllm.v1.structured_output.request import get_structured_output_key

    from peagle.serve.replica.grammar_gate import grammar_of

    params = SamplingParams(structured_outputs=StructuredOutputsParams(**asked))
    tried = grammar_of(params.structured_outputs)
    if "tag" not in kind:  # one without tags is not valid
        validate_xgrammar_grammar(params)
    assert params.structured_outputs is not None
    compiled_kind, compiled_text = get_structured_output_key(params.structured_outputs)
    assert tried == Grammar(kind, compiled_text)
    assert compiled_kind.name.lower() == kind


@pytest.mark.parametrize(
    "asked",
    [{"json_object": True}, {"grammar": "start: ( | )) x"}],
    ids=["any object", "broken lark"],
)
def test_what_compiles_at_once_or_is_invalid_needs_no_trial(asked: dict[str, Any]) -> None:
    pytest.importorskip("vllm")
    from vllm.sampling_params import StructuredOutputsParams

    from peagle.serve.replica.grammar_gate import grammar_of

    assert grammar_of(StructuredOutputsParams(**asked)) is None


class ScriptedClient:
    """An engine's client that ends every answer in a given way."""

    def __init__(self, stop_reason: str | None) -> None:
        from vllm.tokenizers import get_tokenizer

        self.stop_reason, self.asked = stop_reason, 0
        self.tokenizer = get_tokenizer(str(REPOSITORY / "deployments" / "embedded" / "target"))
        self.vllm_config = SimpleNamespace(
            structured_outputs_config=SimpleNamespace(backend="xgrammar", disable_any_whitespace=True),
            model_config=SimpleNamespace(get_vocab_size=lambda: len(self.tokenizer)),
            speculative_config=None,
        )

    async def generate(self, *_: Any) -> AsyncIterator[Any]:
        self.asked += 1
        for stop_reason in (None, self.stop_reason):
            yield SimpleNamespace(outputs=[SimpleNamespace(stop_reason=None), SimpleNamespace(stop_reason=stop_reason)])


@pytest.fixture
def gates() -> Iterator[Callable[[Any], Any]]:
    pytest.importorskip("vllm")
    from peagle.serve.replica.grammar_gate import GrammarGate

    with ExitStack() as opened:

        def gate_of(client: Any) -> Any:
            # So long that no trial on a busy machine takes it: what the engine says is under test.
            gate = GrammarGate(client, GrammarSettings(max_mask_s=5.0))
            opened.callback(gate.close)
            return gate

        yield gate_of


async def outputs_of(client: Any, pattern: str) -> list[Any]:
    from vllm import SamplingParams
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import StructuredOutputsParams

    class Validated(SamplingParams):  # type: ignore[misc]  # vLLM ships no types
        def _validate_structured_outputs(self, *_: Any) -> None:
            """Not under test."""

    params = Validated(structured_outputs=StructuredOutputsParams(regex=pattern))
    seen: list[Any] = []
    try:
        async for output in client.generate("prompt", params):
            seen.append(output)
    except VLLMValidationError as error:
        seen.append(error)
    return seen


async def test_a_grammar_that_became_slow_in_the_engine_ends_its_request_and_is_not_tried_again(gates: Any) -> None:
    from peagle.engine.grammars.mask_times import SLOW_GRAMMAR

    client = ScriptedClient(SLOW_GRAMMAR)
    gate = gates(client)
    begun, error = await outputs_of(client, "a+")
    assert begun.outputs
    assert "more than 5000 ms to follow for one token" in str(error)
    assert "api.grammar.max_mask_s" in str(error)
    assert error.parameter == "structured_outputs"
    assert (client.asked, gate.slow) == (1, 1)
    (again,) = await outputs_of(client, "a+")
    assert str(again) == str(error)
    assert (client.asked, gate.slow) == (1, 1)
    await outputs_of(client, "b+")
    assert (client.asked, gate.slow) == (2, 2)


async def test_an_answer_that_stops_otherwise_is_passed_on_whole(gates: Any) -> None:
    client = ScriptedClient("a stop string")
    gate = gates(client)
    assert len(await outputs_of(client, "a+")) == 2
    assert len(await outputs_of(client, "a+")) == 2
    assert (client.asked, gate.slow) == (2, 0)
