"""vLLM's messages about a request name fields that a client or an operator can set."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from peagle.api.dialects.engine_words import in_our_words
from peagle.engine.checks.argument_checks import argument_types, variable_names, vllm_sources

SOURCES = vllm_sources() or Path()
# vLLM's modules that make, render and check a request, and that make errors.
READ = (
    *("entrypoints/chat_utils.py", "entrypoints/generate/base", "entrypoints/serve/engine", "entrypoints/serve/utils"),
    *("entrypoints/openai/chat_completion", "entrypoints/openai/completion", "entrypoints/openai/responses"),
    *("entrypoints/anthropic", "entrypoints/serve/tokenize", "entrypoints/serve/exception_handling"),
    *("renderers", "sampling_params.py", "v1/structured_output", "tool_parsers", "reasoning", "parser"),
    *("v1/engine/async_llm.py", "v1/engine/input_processor.py", "v1/engine/parallel_sampling.py"),
    *("multimodal", "inputs", "exceptions.py"),
)
OPTION = re.compile(r"(?<![\w-])--[a-z]")
REFUSING = ("Error", "error_response")


def texts(node: ast.AST) -> Iterator[str]:
    """Return the literal texts in an expression, with parts of an f-string joined."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    elif isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    else:
        for child in ast.iter_child_nodes(node):
            yield from texts(child)


def refusals() -> list[str]:
    """Return every text in a call that makes an error, and every constant named like an error."""
    found = []
    for place in READ:
        path = SOURCES / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                match node:
                    case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name)) if name.endswith(REFUSING):
                        found += texts(node)
                    case ast.Assign(targets=[ast.Name(name)], value=value) if "ERROR" in name:
                        found += texts(value)
    return found


REFUSALS = refusals()


def test_the_walk_finds_what_it_is_for() -> None:
    assert len(REFUSALS) > 200
    assert sum(bool(OPTION.search(text)) for text in REFUSALS) >= 8


def test_no_refusal_names_an_option_of_vllms_command_or_a_bare_variable() -> None:
    for text in REFUSALS:
        said = in_our_words(text)
        assert not OPTION.search(said), said
        assert not re.search(r"(?<!environment\.)\bVLLM_[A-Z]", said), said


def test_the_fields_that_a_refusal_names_can_be_written() -> None:
    arguments, variables = argument_types(SOURCES), variable_names(SOURCES)
    for said in map(in_our_words, REFUSALS):
        assert set(re.findall(r"\bengine\.([a-z_]+)", said)) <= arguments.keys(), said
        assert set(re.findall(r"\benvironment\.([A-Z_]+[A-Z])", said)) <= variables, said


@pytest.mark.parametrize(
    ("theirs", "fields"),
    [
        ('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set', True),
        ('tool_choice="required" requires --tool-call-parser to be set', True),
        ("Chat template is passed with request, but --trust-request-chat-template is not set. Refused.", True),
        ("You must set `--enable-mm-embeds` to input `image_embeds`", True),
        ("temperature must be at least 0 (parameter=temperature, value=-1)", False),
    ],
)
def test_a_sentence_says_whose_field_it_names(theirs: str, fields: bool) -> None:
    said = in_our_words(theirs)
    assert ("fields of the deployment file" in said) == fields
    assert "--" not in said
    assert "(parameter=" not in said


def test_every_sentence_that_is_said_otherwise_is_one_of_vllms() -> None:
    for beginning in (
        '"auto" tool choice requires',
        "tool_choice=x requires",
        "Chat template is passed with request, but ",
        "The `logits_processors` argument is not supported by this server.",
    ):
        assert any(text.startswith(beginning) for text in REFUSALS), beginning


def test_a_field_has_the_name_of_the_route() -> None:
    said = in_our_words("max_completion_tokens must be at least 1", {"max_completion_tokens": "max_output_tokens"})
    assert said == "max_output_tokens must be at least 1"
    assert in_our_words("stop at `stop`", {"stop": "stop_sequences"}) == "stop at `stop_sequences`"
