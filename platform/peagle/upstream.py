"""What the platform replaces in vLLM and Ray, and what it uses of them that they do not publish: the rows of a table.

The tables are `engine/patches/patch_table.py` for vLLM and `serve/ray_seams.py` for Ray. They are plain data:
reading one imports neither.
"""

import pkgutil
from dataclasses import dataclass
from enum import StrEnum

NONE_FILED = "none filed"


class Kind(StrEnum):
    """What is done to a symbol."""

    REPLACES = "replaces"
    ADDS = "adds"
    OVERRIDES = "overrides"
    READS = "reads"


class Process(StrEnum):
    """The process that a symbol is changed in: one of an engine's, or any that Serve runs a deployment in."""

    FRONT = "front"
    CORE = "engine core"
    WORKER = "worker"
    SERVE = "serve"


@dataclass(frozen=True, slots=True)
class Seam:
    """One upstream symbol that a new release may change without a word.

    Attributes:
        symbol: `module:Class.attribute`, as `pkgutil.resolve_name` reads it. An attribute that is only set on instances
            is named after its class.
        why: What would be missing without it.
        removed_when: What has to happen upstream before the row can go.
        versions: Releases that it was read and tested for, as `0.29`.
        issue: Upstream's issue or pull request.
        installed_by: The function that changes it, as `module:function`. Only what is replaced or added has one.
        process: Where it is changed.
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
        """The attribute alone."""
        return self.symbol.replace(":", ".").rpartition(".")[2]

    def find(self) -> object:
        """Import the symbol. Raises ImportError, AttributeError where the installed release has none."""
        return pkgutil.resolve_name(self.symbol)


def is_read_for(version: str, versions: tuple[str, ...]) -> bool:
    """Whether a release such as 0.29.1 is of one of `versions`."""
    return ".".join(version.split(".")[:2]) in versions
