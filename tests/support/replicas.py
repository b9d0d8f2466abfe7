"""For replicas that stand in for a model's on real Ray Serve."""

import pkgutil
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Arriving:
    """An object of the class at `path`, which is made where it arrives.

    A replica that named one of Ray Serve LLM's classes would import vLLM first, which takes a core for 15 s.
    """

    path: str
    fields: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self.path, self.fields)


def _made(path: str, fields: dict[str, Any]) -> Any:
    return pkgutil.resolve_name(path)(**fields)
