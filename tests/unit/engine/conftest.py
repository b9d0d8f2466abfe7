from pathlib import Path

import pytest


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configurations of a small target and its head."""
    # Imported here: it brings in torch.
    from support.scheduler_core import write_models

    return write_models(tmp_path_factory.mktemp("model"))
