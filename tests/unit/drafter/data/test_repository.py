"""Targets by name: folders, and repositories in Hugging Face's cache, without a network."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from peagle.drafter.data.generated_text import GeneratedText
from peagle.drafter.data.repository import local_target
from peagle.drafter.train.plan_file import load_training
from peagle.errors import ConfigError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a snapshot of org/name at main, in a cache that the library reads offline."""
    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    repository = cache / "models--org--name"
    folder = repository / "snapshots" / COMMIT
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    for name in ("main", "v2"):
        (repository / "refs" / name).write_text(COMMIT)
    return folder


def test_a_repository_becomes_the_folder_of_its_snapshot(snapshot: Path) -> None:
    for name in ("org/name", "org/name@v2", f"org/name@{COMMIT}"):
        assert local_target(name, "TARGET").samefile(snapshot)


def test_a_folder_is_taken_where_there_is_one(snapshot: Path, tmp_path: Path) -> None:
    for name in ("org/name", "plain", "org/name@v2"):
        (tmp_path / "here" / name).mkdir(parents=True)
        assert local_target(name, "TARGET", tmp_path / "here") == tmp_path / "here" / name
        assert local_target(str(tmp_path / "here" / name), "TARGET") == tmp_path / "here" / name
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert local_target("org/name", "TARGET") == tmp_path / "org" / "name"


@pytest.mark.parametrize("name", ["./nowhere", "/nowhere", "../org/name", "a/b/c", "~/nowhere", "org/name@"])
def test_a_missing_path_is_not_taken_for_a_repository(snapshot: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"^TARGET = .*no such folder\. .*org/name@revision"):
        local_target(name, "TARGET")


@pytest.mark.parametrize("name", ["org/another", "org/name@v3", "nowhere", "org/na--me"])
def test_a_repository_that_cannot_be_fetched_is_named(snapshot: Path, name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^TARGET = .*no such folder, and the repository cannot be downloaded"
    ) as caught:
        local_target(name, "TARGET")
    assert len(str(caught.value).splitlines()) == 1


def test_a_plan_file_names_a_folder_or_a_repository(snapshot: Path, tmp_path: Path) -> None:
    GeneratedText(np.ones((2, 32), np.int32), np.ones(2, np.int32)).save(tmp_path / "rows.npz")
    path = tmp_path / "plan.yaml"
    for name, folder in (("org/name", snapshot), ("org/name@v2", snapshot), ("near", tmp_path / "near")):
        folder.mkdir(exist_ok=True)
        path.write_text(yaml.safe_dump({"target": name, "out": "head", "text": {"generated": "rows.npz"}}))
        assert Path(load_training(path).target).samefile(folder)
    path.write_text(yaml.safe_dump({"target": "org/gone", "out": "head", "text": {"generated": "rows.npz"}}))
    with pytest.raises(ConfigError, match=r"plan\.yaml: target = 'org/gone': .*cannot be downloaded"):
        load_training(path)
