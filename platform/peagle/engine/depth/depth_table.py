"""Checks a depth table before the engine indexes it every step."""

from peagle.errors import ConfigError
from peagle.router.snapshot import DepthTable


def next_table(
    version: int, depths: list[int], current: DepthTable, depth_max: int, batch_max: int, *, by_request: bool = False
) -> DepthTable:
    """Return the table to apply after `current`; `current` itself if it is sent again.

    Args:
        version: At least `current.version`, so that a late message never undoes a newer plan.
        depths: K for batch size 0, 1, 2, …; 1 to `batch_max` + 1 entries, each in 0..`depth_max`.
        by_request: Whether K is an average over the batch.

    Raises:
        ConfigError: A value is invalid. Names the entry, its value and the allowed range.
    """
    if not _is_count(version):
        raise ConfigError("depth table version", version, "it must be a whole number from 0", "Send an integer.")
    if not isinstance(depths, list | tuple) or not 1 <= len(depths) <= batch_max + 1:
        size = len(depths) if isinstance(depths, list | tuple) else depths
        raise ConfigError(
            "depth table length", size, "a table has one K for each batch size", f"Send 1 to {batch_max + 1} depths."
        )
    for batch_size, depth in enumerate(depths):
        if not _is_count(depth) or depth > depth_max:
            raise ConfigError(
                f"depth at batch size {batch_size}", depth, "K is out of range", f"Send 0 to {depth_max}."
            )
    table = DepthTable(version, tuple(depths), by_request)
    if version < current.version or (version == current.version and table != current):
        raise ConfigError(
            "depth table version",
            version,
            f"version {current.version} is already applied",
            f"Send version {current.version + 1} or above.",
        )
    return table


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
