"""An unusable folder is refused before any work, with a fix."""

from pathlib import Path

import pytest

from peagle.errors import ConfigError
from peagle.host.folders import make_folder


def test_a_missing_folder_is_made_with_those_above_it_and_one_that_is_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    make_folder("--out", folder)
    (folder / "kept").touch()
    make_folder("--out", folder)
    assert (folder / "kept").exists()


@pytest.mark.parametrize("below", ["", "deeper"])
def test_a_file_is_no_folder_and_has_none_below(tmp_path: Path, below: str) -> None:
    (tmp_path / "result").touch()
    with pytest.raises(ConfigError, match=r"--out = .*it cannot be created: .*Name another"):
        make_folder("--out", tmp_path / "result" / below)
