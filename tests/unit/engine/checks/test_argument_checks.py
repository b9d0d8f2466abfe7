"""Engine arguments are checked against vLLM's own sources: a small stand-in for them, and the real ones."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from peagle.config import parse_deployment
from peagle.engine.checks import argument_checks
from peagle.engine.checks.argument_checks import argument_types, examine_arguments, parser_names, variable_names

SOURCES = {
    "__init__.py": "",
    "engine/arg_utils.py": """
from vllm.config import KindOfLoad
from vllm.config.model import DType
@dataclass
class EngineArgs:
    model: str = ""
    dtype: DType = "auto"
    load: KindOfLoad = "lazy"
    max_num_seqs: int | None = None
    ratio: float = 0.9
    eager: bool = False
    sizes: list[int] | None = None
    extra: dict[str, Any] | None = None
    runner: Literal["auto", "draft"] = "auto"
    parts: CompilationConfig = None
    level: int | CompilationConfig = 0
    _rank: int = 0
@dataclass
class AsyncEngineArgs(EngineArgs):
    log_requests: bool = False
""",
    "config/__init__.py": "",
    "config/load.py": 'KindOfLoad = Literal["lazy", Other]\n',
    "config/model.py": 'DType = Literal["auto", "bfloat16"]\n',
    "tool_parsers/__init__.py": '_TOOL_PARSERS_TO_REGISTER = {"hermes": ("a", "A"), "openai": ("b", "B")}\n',
    "reasoning/__init__.py": '_REASONING_PARSERS_TO_REGISTER = {"qwen3": ("a", "A")}\n',
    "entrypoints/launchers/cli_args.py": """
class BaseFrontendArgs:
    enable_auto_tool_choice: bool = False
    tool_call_parser: str | None = None
    tool_parser_plugin: str = ""
    reasoning_parser: str = ""
""",
    "envs.py": 'environment_variables: dict[str, Any] = {"VLLM_PORT": 1, "VLLM_CACHE_ROOT": 2}\n',
}


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a package `vllm` that is found instead of an installed one."""
    folder = tmp_path / "vllm"
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    monkeypatch.setattr(argument_checks, "vllm_sources", lambda: folder)
    return folder


def problems(engine: dict[str, Any], environment: dict[str, str] | None = None) -> list[str]:
    raw = {
        "name": "tiny",
        "target": {"source": "org/target"},
        "speculation": {"enabled": False},
        "engine": engine,
        "environment": environment or {},
    }
    checks = examine_arguments(parse_deployment(raw, "x.yaml"))
    return [str(problem) for check in checks for problem in check.problems]


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize(
    "engine",
    [
        {"dtype": "bfloat16", "max_num_seqs": 4, "ratio": 1, "eager": True, "sizes": [1], "extra": {"a": 1}},
        {"dtype": None, "max_num_seqs": None, "eager": None},
        {"enable_auto_tool_choice": True, "tool_call_parser": "hermes", "reasoning_parser": "qwen3"},
        {"tool_call_parser": "mine", "tool_parser_plugin": "mine.py"},
        {"load": "anything", "parts": {"level": 3}, "level": "O3", "log_requests": True, "runner": "draft"},
    ],
)
def test_valid_arguments_pass(engine: dict[str, Any]) -> None:
    assert problems(engine) == []


@pytest.mark.usefixtures("sources")
@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ({"max_num_seq": 4}, "engine.max_num_seq = 4: vLLM has no such engine argument. Did you mean max_num_seqs?"),
        ({"colour": "red"}, "engine.colour = 'red': vLLM has no such engine argument. Remove it"),
        ({"dtype": "bfloat17"}, "engine.dtype = 'bfloat17': vLLM takes auto or bfloat16. Did you mean bfloat16?"),
        ({"max_num_seqs": "4"}, "vLLM takes a whole number"),
        ({"max_num_seqs": True}, "vLLM takes a whole number"),
        ({"ratio": "0.9"}, "vLLM takes a number."),
        ({"eager": 1}, "vLLM takes true or false"),
        ({"sizes": 4}, "vLLM takes a list"),
        ({"extra": []}, "vLLM takes fields"),
        ({"runner": "daft"}, "Did you mean draft?"),
        ({"tool_call_parser": "hermez"}, "vLLM has no such parser. Did you mean hermes?"),
        ({"reasoning_parser": "x"}, "engine.reasoning_parser = 'x': vLLM has no such parser. Write one of qwen3."),
        ({"enable_auto_tool_choice": True}, "engine.tool_call_parser is not set"),
    ],
)
def test_an_invalid_argument_is_named(engine: dict[str, Any], words: str) -> None:
    (line,) = problems(engine)
    assert words in line


@pytest.mark.usefixtures("sources")
def test_every_wrong_argument_is_named_at_once() -> None:
    assert len(problems({"max_num_seq": 4, "eager": 1, "dtype": "auto"})) == 2


@pytest.mark.usefixtures("sources")
def test_a_variable_that_vllm_would_ignore_is_named_without_its_value() -> None:
    (line,) = problems({}, {"VLLM_CACHE_ROOTS": "/cache", "HF_HOME": "/models", "VLLM_PORT": "1"})
    assert "environment.VLLM_CACHE_ROOTS: " in line
    assert "Did you mean VLLM_CACHE_ROOT?" in line
    assert "/cache" not in line


def test_without_vllm_nothing_is_checked_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    raw = {"name": "t", "target": {"source": "o/t"}, "speculation": {"enabled": False}, "engine": {"colour": 1}}
    checks = examine_arguments(parse_deployment(raw, "x.yaml"))
    assert [check.outcome for check in checks] == ["not checked", "not checked"]
    assert "vLLM is not installed" in checks[0].detail


def test_the_installed_vllm_is_understood() -> None:
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    folder = Path(spec.origin).parent
    assert {"dtype", "max_model_len", "max_num_seqs", "enforce_eager", "scheduler_cls"} <= argument_types(folder).keys()
    assert {"tool_call_parser", "enable_auto_tool_choice", "chat_template"} <= argument_types(folder).keys()
    assert problems({"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}) == []
    assert {"hermes", "openai", "qwen3_coder", "gemma4"} <= parser_names(folder, "tool_parsers")
    assert {"openai_gptoss", "gemma4"} <= parser_names(folder, "reasoning")
    assert {"VLLM_CPU_KVCACHE_SPACE", "VLLM_PLUGINS"} <= variable_names(folder)
    assert problems({"dtype": "bfloat17", "enforce_eager": True, "max_model_len": 1024}) != []
