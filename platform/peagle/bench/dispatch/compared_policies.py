"""Policies that `bench dispatch` can compare: the platform's, Ray Serve's default and round robin."""

from collections.abc import Iterable

from peagle.config import ROUTING_POLICIES
from peagle.errors import ConfigError

ROUND_ROBIN = "round-robin"
COMPARED = (*ROUTING_POLICIES, ROUND_ROBIN)


def compared(names: Iterable[str]) -> tuple[str, ...]:
    """Return `names` without duplicates, or all policies if empty. Raises ConfigError for an unknown name."""
    chosen = tuple(dict.fromkeys(names)) or COMPARED
    for name in chosen:
        if name not in COMPARED:
            raise ConfigError("--policies", name, "there is no such policy", f"Known: {', '.join(COMPARED)}.")
    return chosen
