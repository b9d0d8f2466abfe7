"""A Markov head in a real engine, with n-grams and without: the text is the same, and it takes fewer steps.

The last file of its folder: vLLM's counters are those of the engine that was started last, and this starts others.
"""

import json
import shutil
from pathlib import Path

import pytest

from peagle.config import Deployment
from support.engine_runner import Runner, held_out, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

DEPTH = 7


def changed(deployment: Deployment, folder: Path, field: str, left_out: str = "") -> Deployment:
    """The deployment with a drafter that has neither the `field` nor the file `left_out`."""
    assert deployment.drafter is not None
    shutil.copytree(deployment.drafter.source, folder, ignore=shutil.ignore_patterns(left_out))
    config = json.loads((folder / "config.json").read_text())
    del config[field]
    (folder / "config.json").write_text(json.dumps(config))
    return deployment.model_copy(update={"drafter": deployment.drafter.model_copy(update={"source": str(folder)})})


def answers(runner: Runner) -> tuple[list[tuple[int, ...]], int, int]:
    """Texts, and how many drafts and accepted tokens they took."""
    runner.set_depths(DEPTH)
    names, before = ("spec_decode_num_drafts", "spec_decode_num_accepted_tokens"), runner.counters()
    outputs = runner.generate(held_out(64), 8, max_tokens=32, ignore_eos=True)
    drafts, accepted = (runner.counters()[name] - before[name] for name in names)
    return [tuple(output.token_ids) for output in outputs], drafts, accepted


def test_it_changes_drafts_for_the_better_and_no_text(runner: Runner, deployment: Deployment, tmp_path: Path) -> None:
    found = [answers(runner)]
    for less in (
        changed(deployment, tmp_path / "without n-grams", "ngram_bias_nats"),
        changed(deployment, tmp_path / "without a head", "markov_rank", "markov_head"),
    ):
        with running(less) as other:
            found.append(answers(other))
    texts, drafts, accepted = zip(*found, strict=True)
    assert texts[0] == texts[1] == texts[2]
    assert drafts[0] < drafts[1] < drafts[2]
    assert accepted[0] > accepted[1] > accepted[2]
