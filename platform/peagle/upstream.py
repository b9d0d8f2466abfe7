"""Table rows for the vLLM and Ray symbols that the platform replaces, or uses although they are private.

The tables are `engine/patches/patch_table.py` for vLLM and `serve/ray_seams.py` for Ray. They are plain data:
reading one imports neither.
"""

import pkgutil
from dataclasses import dataclass
from enum import StrEnum

NONE_FILED = "none filed"


class Kind(StrEnum):
    """How a symbol is used or changed."""

    REPLACES = "replaces"
    ADDS = "adds"
    OVERRIDES = "overrides"
    READS = "reads"


class Process(StrEnum):
    """Process in which a symbol is changed: one of an engine's, or any Serve deployment's."""

    FRONT = "front"
    CORE = "engine core"
    WORKER = "worker"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class Seam:
    """One upstream symbol that a new release may change without notice.

    Attributes:
        symbol: `module:Class.attribute`, as `pkgutil.resolve_name` reads it. An attribute that is set only on instances
            is named after its class.
        why: What would not work without it.
        removed_when: Upstream change after which the row can be removed.
        versions: Releases that it was read and tested for, as `0.29`.
        issue: Upstream issue or pull request.
        installed_by: Function that changes it, as `module:function`; only for replaced and added symbols.
        process: Process in which it is changed.
    """

    symbol: str
    kind: Kind
    why: str
    removed_when: str
    versions: tuple[str, ...]
    issue: str = NONE_FILED
    installed_by: str = ""
    process: Process | None = None

    @property
    def name(self) -> str:
        """Name of the attribute, without module and class."""
        return self.symbol.replace(":", ".").rpartition(".")[2]

    def find(self) -> object:
        """Import the symbol. Raises ImportError or AttributeError if the installed release does not have it."""
        return pkgutil.resolve_name(self.symbol)


def is_read_for(version: str, versions: tuple[str, ...]) -> bool:
    """Whether a release such as 0.29.1 belongs to one of `versions`."""
    return ".".join(version.split(".")[:2]) in versions
