import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Configurations of a small target and its head."""
    # Imported here: it brings in torch.
    from support.scheduler_core import write_models

    return write_models(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def draft_rows_kernel() -> ModuleType:
    """The kernel's module, under Triton's interpreter: which it is to be is settled as the module is imported."""
    pytest.importorskip("triton")
    module = importlib.import_module("peagle.engine.drafting.draft_rows_kernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        return importlib.reload(module)
