"""What `bench dispatch` can compare: every policy of the platform, Ray Serve's own and round robin."""

from collections.abc import Iterable

from peagle.config import ROUTING_POLICIES
from peagle.errors import ConfigError

ROUND_ROBIN = "round-robin"
COMPARED = (*ROUTING_POLICIES, ROUND_ROBIN)


def compared(names: Iterable[str]) -> tuple[str, ...]:
    """Return `names`, each once, or all where there are none. Raises ConfigError where one is not known."""
    chosen = tuple(dict.fromkeys(names)) or COMPARED
    for name in chosen:
        if name not in COMPARED:
            raise ConfigError("--policies", name, "there is no such policy", f"Known: {', '.join(COMPARED)}.")
    return chosen
