"""Helpers for fake replicas on real Ray Serve.

Classes of Ray Serve LLM's requests and answers lie in a module that imports vLLM, which takes a core for 15 s: in each
replica, and again in each that replaces one which a test has ended. With these a replica needs none of them.
"""

import pkgutil
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

MODELS = "ray.llm._internal.serve.core.configs.openai_api_models"


class Sent:
    """The fields of a request that an ingress sent."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["__dict__"])


def take_requests_without_vllm() -> None:
    """Make this replica's process read every request as a `Sent`."""
    module = ModuleType(MODELS)
    module.__getattr__ = lambda _: Sent  # type: ignore[method-assign]
    sys.modules[MODELS] = module


@dataclass(frozen=True)
class Answered:
    """Return an object of one of those classes, created on arrival."""

    name: str
    fields: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.name, self.fields)


def _made(name: str, fields: dict[str, Any]) -> Any:
    return pkgutil.resolve_name(f"{MODELS}:{name}")(**fields)
