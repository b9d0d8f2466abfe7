"""What of a request is tried: exactly what vLLM's engine core will have xgrammar compile, once it has validated it."""

from typing import Any

import pytest

from peagle.engine.grammars.trials import Grammar


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
