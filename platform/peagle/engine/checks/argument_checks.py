"""Checks a deployment's engine arguments and variables against the installed vLLM.

The names are read from vLLM's sources without importing it, which takes seconds and needs its libraries.
"""

import ast
import functools
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peagle.config import Deployment
from peagle.config.schema import closest
from peagle.engine.checks.check import Check, run_check
from peagle.errors import CombinedConfigError, ConfigError

# Prefix of vLLM's own variables; vLLM ignores an unknown one, with a warning in its log.
VARIABLE_PREFIX = "VLLM_"

# Arguments that name a parser, vLLM's package with these parsers, and the argument for a plugin with others.
PARSERS: Mapping[str, str] = {"tool_call_parser": "tool_parsers", "reasoning_parser": "reasoning"}
PLUGINS: Mapping[str, str] = {
    "tool_call_parser": "tool_parser_plugin",
    "reasoning_parser": "reasoning_parser_plugin",
}

_KINDS: Mapping[str, tuple[type, ...]] = {
    "int": (int,),
    "float": (float, int),
    "str": (str,),
    "bool": (bool,),
    "None": (type(None),),
    "list": (list,),
    "set": (list,),
    "dict": (dict,),
}
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", list: "a list", dict: "fields"}


@dataclass(frozen=True, slots=True)
class Expected:
    """Allowed values of an argument: one of `kinds`, or exactly one of `choices`."""

    kinds: frozenset[type]
    choices: tuple[object, ...] = ()

    def takes(self, value: object) -> bool:
        """Return whether vLLM accepts `value`; null always means vLLM's own default."""
        if isinstance(value, bool):
            return bool in self.kinds or value in [choice for choice in self.choices if isinstance(choice, bool)]
        return value is None or isinstance(value, tuple(self.kinds)) or value in self.choices

    def __str__(self) -> str:
        kinds = self.kinds - {int} if float in self.kinds else self.kinds
        return " or ".join([*(name for kind, name in _NAMES.items() if kind in kinds), *map(str, self.choices)])


def examine_arguments(deployment: Deployment) -> tuple[Check, ...]:
    """Check the names of a deployment's vLLM arguments, and their types if these are simple."""
    sources = vllm_sources()
    if sources is None:
        why = "vLLM is not installed here"
        return (Check("engine", "arguments", "not checked", why), Check("engine", "variables", "not checked", why))
    return (
        run_check("engine", "arguments", lambda: _arguments(deployment.engine, sources)),
        run_check("engine", "variables", lambda: _variables(deployment.environment, sources)),
    )


def _arguments(engine: Mapping[str, Any], sources: Path) -> str:
    known = argument_types(sources)
    problems = []
    for name, value in engine.items():
        field, wanted = f"engine.{name}", expected(known[name], sources) if name in known else None
        if name not in known:
            near = closest(name, known)
            fix = f"Did you mean {near}?" if near else "Remove it; vLLM's documentation lists its engine arguments."
            problems.append(ConfigError(field, value, "vLLM has no such engine argument", fix))
        elif wanted is not None and not wanted.takes(value):
            near = closest(value, map(str, wanted.choices)) if isinstance(value, str) else None
            fix = f"Did you mean {near}?" if near else "Write a value of that kind."
            problems.append(ConfigError(field, value, f"vLLM takes {wanted}", fix))
    problems += _parser_problems(engine, sources)
    if problems:
        raise CombinedConfigError.of(problems)
    return ", ".join(engine) or "none set"


def _parser_problems(engine: Mapping[str, Any], sources: Path) -> Iterator[ConfigError]:
    """Yield problems with tool-call and reasoning parsers, which vLLM reports only when a replica starts."""
    for name, package in PARSERS.items():
        parser, known = engine.get(name), parser_names(sources, package)
        # A plugin may provide its own parsers.
        if isinstance(parser, str) and known and parser not in known and not engine.get(PLUGINS[name]):
            near = closest(parser, known)
            fix = f"Did you mean {near}?" if near else f"Write one of {', '.join(sorted(known))}."
            yield ConfigError(f"engine.{name}", parser, "vLLM has no such parser", fix)
    if engine.get("enable_auto_tool_choice") and not engine.get("tool_call_parser"):
        fix = "Name the format of the model's tool calls, such as engine.tool_call_parser: hermes."
        yield ConfigError("engine.enable_auto_tool_choice", True, "engine.tool_call_parser is not set", fix)


def _variables(environment: Mapping[str, str], sources: Path) -> str:
    known = variable_names(sources)
    problems = []
    for name in environment:
        if known and name.startswith(VARIABLE_PREFIX) and name not in known:
            near = closest(name, known)
            fix = f"Did you mean {near}? If not, remove it." if near else "Remove it; an engine argument may do it."
            problem = "this vLLM has no such variable and would ignore it"
            problems.append(ConfigError(f"environment.{name}", None, problem, fix))
    if problems:
        raise CombinedConfigError.of(problems)
    return ", ".join(environment) or "none set"


def vllm_sources() -> Path | None:
    """Return the folder of the installed vLLM; None if it is not installed."""
    try:
        spec = importlib.util.find_spec("vllm")
    except ValueError:  # it is partially imported
        return None
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent
    return folder if (folder / "engine" / "arg_utils.py").is_file() else None


@functools.cache
def argument_types(sources: Path) -> Mapping[str, ast.expr]:
    """Return the annotations of vLLM's engine arguments and of its OpenAI server's, such as a chat template.

    `sources` is the folder of the package `vllm`.
    """
    server = sources / "entrypoints" / "launchers" / "cli_args.py"
    return {
        field.target.id: field.annotation
        for statement in [*_statements(sources / "engine" / "arg_utils.py"), *_statements(server)]
        if isinstance(statement, ast.ClassDef)
        and statement.name in ("EngineArgs", "AsyncEngineArgs", "BaseFrontendArgs")
        for field in statement.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and field.target.id[0] != "_"
    }


@functools.cache
def parser_names(sources: Path, package: str) -> frozenset[str]:
    """Return the parsers that vLLM registers in one of its packages; empty if its source does not list them."""
    for statement in _statements(sources / package / "__init__.py"):
        match statement:
            case ast.Assign(targets=[ast.Name(name)], value=ast.Dict(keys=keys)) if name.endswith("_TO_REGISTER"):
                return frozenset(str(key.value) for key in keys if isinstance(key, ast.Constant))
    return frozenset()


@functools.cache
def variable_names(sources: Path) -> frozenset[str]:
    """Return the names of vLLM's environment variables; empty if its source does not list them."""
    for statement in _statements(sources / "envs.py"):
        match statement:
            case ast.AnnAssign(target=ast.Name("environment_variables"), value=ast.Dict(keys=keys)):
                return frozenset(str(key.value) for key in keys if isinstance(key, ast.Constant))
    return frozenset()


def expected(annotation: ast.expr, sources: Path) -> Expected | None:
    """Parse an annotation such as `int | None` or `Literal["auto", "fp8"]`; None if it is not checked."""
    match annotation:
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            first, second = expected(left, sources), expected(right, sources)
            if first is None or second is None:
                return None
            return Expected(first.kinds | second.kinds, first.choices + second.choices)
        case ast.Constant(None):
            return Expected(frozenset(_KINDS["None"]))
        case ast.Name(name) | ast.Subscript(value=ast.Name(name)) if name in _KINDS:
            return Expected(frozenset(_KINDS[name]))
        case ast.Subscript(value=ast.Name("Literal"), slice=choices):
            try:
                values = ast.literal_eval(choices)
            except ValueError:  # it uses other names
                return None
            return Expected(frozenset(), values if isinstance(values, tuple) else (values,))
        case ast.Name(name):
            return _imported(name, sources)
        case _:
            return None


def _imported(name: str, sources: Path) -> Expected | None:
    """Parse `name = Literal[...]` in the module from which vLLM's argument file imports `name`."""
    for statement in _statements(sources / "engine" / "arg_utils.py"):
        if not isinstance(statement, ast.ImportFrom) or name not in [alias.name for alias in statement.names]:
            continue
        place = sources.joinpath(*(statement.module or "").split(".")[1:])
        for path in sorted(place.glob("*.py")) if place.is_dir() else [place.with_suffix(".py")]:
            for definition in _statements(path):
                match definition:
                    case ast.Assign(targets=[ast.Name(found)], value=value) if found == name:
                        return expected(value, sources)
    return None


@functools.cache
def _statements(path: Path) -> Sequence[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body if path.is_file() else []
