"""Real torchrun processes train the same head as one process, resume after a kill, and fail together."""

import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from test_heads import VOCABULARY, target_of
from transformers import AutoConfig

from peagle.drafter.data.generated_text import GeneratedText
from peagle.drafter.train.compute import ALONE
from peagle.drafter.train.heads import make_head
from peagle.drafter.train.plan_file import load_training
from peagle.drafter.train.training import CHECKPOINT
from support.engines.train_processes import train
from support.paths import SUPPORT

SCRIPT = SUPPORT / "engines" / "train_processes.py"
STEPS = 6
PLANS: dict[str, dict[str, Any]] = {
    "p-eagle": {"method": "p-eagle"},
    "partitioned": {"method": "p-eagle", "partitions": 2},
    "eagle3": {"method": "eagle3"},
    "killed": {"method": "p-eagle"},
    "refused": {"method": "p-eagle", "tokens_per_step": 31},
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def write_plan(folder: Path, name: str, method: str, partitions: int = 1, tokens_per_step: int = 48) -> None:
    """Write a plan whose steps have three rows, except the first and every fourth from there, which have one."""
    rates = {"matrix": 2e-3, "other": 1e-3, "warmup_steps": 2, "decay_steps": 2}
    plan = {
        "target": "target",
        "out": name,
        "text": {"generated": "rows.npz", "generated_ratio": 1.0, "corpus": None},
        "head": {"method": method, "layers": 2, "trained_depth": 4, "tapped_layers": [1, 2, 3], "mask_token": "<mask>"},
        "training": {
            "steps": STEPS,
            "tokens_per_step": tokens_per_step,
            "crop_tokens": 16,
            "partitions": partitions,
            "rates": rates,
            "checkpoint_every_steps": 2,
            "device": "cpu",
            "threads": 1,
        },
    }
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(plan))


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: value.float() for name, value in load_file(folder / "model.safetensors").items()}


def distance(left: Mapping[str, torch.Tensor], right: Mapping[str, torch.Tensor]) -> float:
    return float(sum((left[name] - right[name]).square().sum() for name in left) ** 0.5)


@dataclass(frozen=True)
class Runs:
    """A folder of plans, each trained by one process into `one/NAME` and by two into `NAME`."""

    folder: Path
    losses: dict[str, list[float]]
    resumed: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    target_of("llama", folder / "target")
    tokens = np.random.default_rng(0).integers(0, VOCABULARY - 1, (4, 32)).astype(np.int32)
    GeneratedText(tokens, np.full(4, 8, np.int32)).save(folder / "rows.npz")
    for name, settings in PLANS.items():
        write_plan(folder, name, **settings)
    losses = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name in ("p-eagle", "partitioned", "eagle3"):
        losses[name] = train(folder / f"{name}.yaml", ALONE)
        (folder / "one").mkdir(exist_ok=True)
        (folder / name).rename(folder / "one" / name)
    torch.set_num_threads(threads)
    names = ("refused", "p-eagle", "partitioned", "eagle3", "killed")
    killed = torchrun(SCRIPT, "--kill-at", 3, *(folder / f"{name}.yaml" for name in names))
    assert killed.returncode != 0
    assert (folder / "killed" / CHECKPOINT).exists(), killed.stderr
    assert not (folder / "killed" / "model.safetensors").exists()
    resumed = torchrun("-m", "peagle.cli", "drafter", "train", "--plan", folder / "killed.yaml")
    return Runs(folder, losses, resumed)


@pytest.mark.parametrize("name", ["p-eagle", "partitioned", "eagle3"])
def test_two_processes_train_the_head_that_one_does(runs: Runs, name: str) -> None:
    plan = load_training(runs.folder / f"{name}.yaml").plan
    torch.manual_seed(plan.seed)
    target = runs.folder / "target"
    new = make_head(target, AutoConfig.from_pretrained(target), VOCABULARY - 1, plan, (1, 2, 3)).state_dict()
    one, two = weights(runs.folder / "one" / name), weights(runs.folder / name)
    assert one.keys() == two.keys()
    new = {key: new[key].reshape(value.shape) for key, value in one.items()}
    # Both compute in bfloat16, in which another order of a sum may round differently by 1/256: a small part of the
    # distance that training covers. With the gradients of only one of the two processes it is four tenths.
    assert distance(one, two) <= 0.02 * distance(one, new)


@pytest.mark.parametrize("name", ["p-eagle", "partitioned", "eagle3"])
def test_the_first_process_reports_the_progress_of_all(runs: Runs, name: str) -> None:
    reported = [float(each) for each in (runs.folder / f"{name}.losses-0").read_text().split()]
    assert reported == pytest.approx(runs.losses[name], rel=5e-3)
    assert not (runs.folder / f"{name}.losses-1").read_text()


def test_two_processes_that_were_killed_end_where_uninterrupted_ones_do(runs: Runs) -> None:
    assert runs.resumed.returncode == 0, runs.resumed.stderr
    whole, resumed = weights(runs.folder / "p-eagle"), weights(runs.folder / "killed")
    for name, value in whole.items():
        assert torch.equal(value, resumed[name]), name


def test_only_one_process_talks(runs: Runs) -> None:
    said = " ".join(runs.resumed.stderr.split())  # undo the terminal's line breaks
    assert said.count(f"2 of {STEPS} steps are done") == 1
    assert said.count("is ready") == 1


def test_a_refusal_reaches_every_process_and_none_hangs(runs: Runs) -> None:
    for rank in (0, 1):
        found = (runs.folder / f"refused.refused-{rank}").read_text()
        assert "training.tokens_per_step = 31: with rows of 16 tokens a step has 1, too few for 2 processes" in found
        assert "Write 32 or more" in found
    assert not (runs.folder / "refused").exists()
