"""Output folders: created and checked before the work that fills them."""

import os
from pathlib import Path

from peagle.errors import ConfigError


def make_folder(field: str, folder: Path) -> None:
    """Create `folder` if missing. Raises ConfigError for `field` if it cannot be created or is not writable."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(field, str(folder), f"it cannot be created: {error.strerror}", "Name another.") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ConfigError(field, str(folder), "it is not writable", "Name another folder, or make it writable.")
