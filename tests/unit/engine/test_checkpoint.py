"""Whatever a checkpoint's files contain, reading them raises nothing except ConfigError."""

import json
import random
from typing import Any

from peagle.engine.checks.drafter_checks import examine_checkpoints

ODD: list[Any] = [None, True, -1, 0, 10**12, 0.5, "", "x\n\x1b", [], [1], ["a", None], [[1], [2], [3]], {}, {"a": 1}]


def test_random_settings_are_read_or_refused(pair: Any) -> None:
    chance = random.Random(20)
    deployment = pair.deployment()
    keys = [*pair.head.config, "eagle_config", "speculators_config", "speculators_model_type", "target_hidden_size"]
    keys += ["num_aux_hidden_states", "transformer_layer_config", "mask_token_id", "text_config", "d2t"]
    outcomes = set()
    for _ in range(300):
        for checkpoint in (pair.head, pair.target):
            changed = {key: chance.choice(ODD) for key in chance.sample(keys, k=chance.randint(0, 3))}
            (checkpoint.folder / "config.json").write_text(json.dumps(checkpoint.config | changed))
        checks = examine_checkpoints(deployment)
        outcomes |= {check.outcome for check in checks}
        assert all(len(str(problem).splitlines()) == 1 for check in checks for problem in check.problems)
    assert outcomes == {"ok", "wrong"}


def test_random_damage_to_a_weight_file_is_found_or_harmless(pair: Any) -> None:
    chance = random.Random(20)
    deployment = pair.deployment()
    path = pair.head.folder / "model.safetensors"
    whole = path.read_bytes()
    header_bytes = 8 + int.from_bytes(whole[:8], "little")
    outcomes = set()
    for _ in range(300):
        content = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            content[chance.randrange(header_bytes)] = chance.randrange(256)
        path.write_bytes(content[: chance.choice([len(content), chance.randrange(len(content))])])
        outcomes |= {check.outcome for check in examine_checkpoints(deployment)}
    assert "wrong" in outcomes


def test_an_index_that_names_strange_files_is_refused(pair: Any) -> None:
    deployment = pair.deployment()
    index = pair.head.folder / "model.safetensors.index.json"
    for shard in ("a\0b", "x" * 300, ".", "../target", ""):
        index.write_text(json.dumps({"weight_map": {"fc.weight": shard}}))
        assert "wrong" in {check.outcome for check in examine_checkpoints(deployment)}
