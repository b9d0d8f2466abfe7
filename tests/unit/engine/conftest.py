import importlib
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write configurations of a small target and its head."""
    # Imported here, because it imports torch.
    from support.engines.scheduler_core import write_models

    return write_models(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def draft_rows_kernel() -> ModuleType:
    """Return the kernel's module under Triton's interpreter, which must be chosen before the import."""
    pytest.importorskip("triton")
    module = importlib.import_module("peagle.engine.drafting.draft_rows_kernel")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        return importlib.reload(module)
