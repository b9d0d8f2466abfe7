"""A Markov head in a real engine, with and without n-grams: the same text in fewer steps."""

import json
import shutil
from pathlib import Path

import pytest

from peagle.config import Deployment
from support.engines.engine_runner import embedded, held_out, running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

# float32: see test_live_depth.py.
ENGINE = {"dtype": "float32", "enforce_eager": True, "max_num_seqs": 16}


def without_its_markov_head(deployment: Deployment, folder: Path) -> Deployment:
    assert deployment.drafter is not None
    shutil.copytree(deployment.drafter.source, folder, ignore=shutil.ignore_patterns("markov_head"))
    config = json.loads((folder / "config.json").read_text())
    del config["markov_rank"]
    (folder / "config.json").write_text(json.dumps(config))
    drafter = deployment.drafter.model_copy(update={"source": str(folder)})
    return deployment.model_copy(update={"drafter": drafter})


def without_its_ngrams(deployment: Deployment, folder: Path) -> Deployment:
    assert deployment.drafter is not None
    shutil.copytree(deployment.drafter.source, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["ngram_bias_nats"]
    (folder / "config.json").write_text(json.dumps(config))
    drafter = deployment.drafter.model_copy(update={"source": str(folder)})
    return deployment.model_copy(update={"drafter": drafter})


def test_it_changes_drafts_for_the_better_and_no_text(tmp_path: Path) -> None:
    whole = embedded(**ENGINE)
    texts, drafts, accepted = [], [], []
    alone, markov_only = without_its_markov_head(whole, tmp_path / "alone"), without_its_ngrams(whole, tmp_path / "mk")
    for deployment in (whole, markov_only, alone):
        with running(deployment) as runner:
            outputs = runner.generate(held_out(64), 16, max_tokens=32, ignore_eos=True)
            texts.append([tuple(output.token_ids) for output in outputs])
            counters = runner.counters()
            drafts.append(counters["spec_decode_num_drafts"])
            accepted.append(counters["spec_decode_num_accepted_tokens"])
    assert texts[0] == texts[1] == texts[2]
    assert drafts[0] < drafts[1] < drafts[2]
    assert accepted[0] > accepted[1] > accepted[2]
