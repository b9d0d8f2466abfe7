"""Folders that results are written into: made, and found writable, before the work that fills them."""

import os
from pathlib import Path

from peagle.errors import ConfigError


def make_folder(field: str, folder: Path) -> None:
    """Make `folder` where it is missing. Raises ConfigError of `field` where it cannot be made, or not be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(field, str(folder), f"the folder cannot be made: {error.strerror}", "Name another.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(field, str(folder), "nothing can be written into it", "Name another, or allow it.")
