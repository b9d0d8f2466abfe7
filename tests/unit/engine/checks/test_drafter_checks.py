"""A head that does not match its target is rejected before anything starts, with field, problem and fix."""

import json
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from peagle.config import parse_deployment
from peagle.engine.checks.drafter_checks import check_checkpoints, examine_checkpoints
from peagle.errors import ConfigError


def problem_of(deployment: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_checkpoints(deployment)
    assert len(caught.value.problems) == 1, str(caught.value)
    return str(caught.value)


def test_a_head_that_fits_passes_and_every_check_says_what_it_saw(pair: Any) -> None:
    checks = examine_checkpoints(pair.deployment())
    assert {check.outcome for check in checks} == {"ok"}
    seen = {(check.subject, check.name): check.detail for check in checks}
    assert seen["drafter", "tapped layers"] == "2, 8, 13"
    assert seen["drafter", "mask token"] == "token 1"
    assert seen["target", "tokenizer"] == "tokenizer.json"


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"hidden_size": 16}, "config.json: hidden_size = 16: the target's hidden size is 8"),
        ({"target_hidden_size": 4}, "config.json: target_hidden_size = 4: the target's hidden size is 8"),
        (
            {"vocab_size": 64, "draft_vocab_size": 64},
            "config.json: vocab_size = 64: the target's vocabulary has 32 tokens",
        ),
        ({"draft_vocab_size": 40}, "config.json: draft_vocab_size = 40: it is above vocab_size, which is 32"),
        ({"draft_vocab_size": 16}, "tensor d2t: it is missing"),
        ({"ptd_token_id": None}, "config.json: ptd_token_id: a P-EAGLE head must name its mask token"),
        ({"ptd_token_id": 32}, "config.json: ptd_token_id = 32: the vocabulary ends at 31"),
        ({"ptd_token_id": -1}, "config.json: ptd_token_id = -1: it must be a whole number from 0"),
        ({"ptd_token_id": True}, "config.json: ptd_token_id = True: it must be a whole number from 0"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 8, 8]}, "= [2, 8, 8]: it must name 3 different layers"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 8]}, "= [2, 8]: it must name 3 different layers"),
        ({"eagle_aux_hidden_state_layer_ids": [2, 8, 17]}, "= [2, 8, 17]: the target's hidden states go from 0 to 16"),
        ({"eagle_aux_hidden_state_layer_ids": "2,8,13"}, "= '2,8,13': it must list layers by number"),
        ({"architectures": ["LlamaForCausalLMEagle"]}, "vLLM knows no such draft head. Did you mean"),
        ({"architectures": ["BertModel"]}, "vLLM knows no such draft head. Use a head of"),
        ({"architectures": []}, "config.json: architectures = []: it must name one architecture"),
        ({"num_hidden_layers": 3}, "tensor layers.2: num_hidden_layers is 3"),
        ({"num_hidden_layers": "2"}, "config.json: num_hidden_layers = '2': it must be a whole number from 1"),
        ({"speculators_model_type": "eagle3"}, "speculators_model_type = 'eagle3': drafter.method is p-eagle"),
        ({"trained_depth": 5}, "drafter.trained_depth = 8: the head was trained to depth 5. Lower it to 5."),
        ({"trained_depth": "deep"}, "config.json: trained_depth = 'deep': it must be a whole number from 1"),
    ],
)
def test_a_wrong_setting_of_the_head_is_named(pair: Any, config: dict[str, Any], words: str) -> None:
    pair.head.write(config)
    assert any(words in str(problem) for check in examine_checkpoints(pair.deployment()) for problem in check.problems)


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"fc.weight": (8, 16)}, "tensor fc.weight = [8, 16]: its shape must be [8, 24]"),
        ({"fc.weight": None}, "tensor fc.weight: it is missing"),
        ({"mask_hidden": None}, "tensor mask_hidden: it is missing"),
        ({"mask_hidden": (1, 8)}, "tensor mask_hidden = [1, 8]: its shape must be [1, 24]"),
        ({"embed_tokens.weight": (16, 8)}, "tensor embed_tokens.weight = [16, 8]: its shape must be [32, 8]"),
        ({"lm_head.weight": (16, 8)}, "tensor lm_head.weight = [16, 8]: its shape must be [32, 8]"),
        ({"layers.1.self_attn.q_proj.weight": None}, "tensor layers.1: num_hidden_layers is 2"),
    ],
)
def test_a_wrong_or_missing_tensor_of_the_head_is_named(pair: Any, shapes: dict[str, Any], words: str) -> None:
    pair.head.write(shapes=shapes)
    assert words in problem_of(pair.deployment())


def test_a_markov_head_has_the_rank_and_the_shapes_that_the_head_says(pair: Any) -> None:
    def write(**changed: Any) -> None:
        shapes = {"markov_w1.weight": (32, 4), "markov_w2.weight": (32, 4), "gate_proj.bias": (4,)}
        shapes |= {"gate_proj.weight": (4, 12)} | changed
        folder = pair.head.folder / "markov_head"
        folder.mkdir(exist_ok=True)
        save_file({name: np.zeros(shape, np.float16) for name, shape in shapes.items()}, folder / "model.safetensors")

    pair.head.write({"markov_rank": 4})
    assert "markov_head/model.safetensors: there are no weights" in problem_of(pair.deployment())
    write()
    checks = examine_checkpoints(pair.deployment())
    assert ("drafter", "Markov head", "rank 4") in [(check.subject, check.name, check.detail) for check in checks]
    pair.head.write({"markov_rank": 4, "ngram_bias_nats": 0.5})
    details = [check.detail for check in examine_checkpoints(pair.deployment()) if check.name == "Markov head"]
    assert details == ["rank 4, 0.5 nats for each token of an n-gram"]
    for wrong in (-1, 10.5, "much", True):
        pair.head.write({"markov_rank": 4, "ngram_bias_nats": wrong})
        problem = f"config.json: ngram_bias_nats = {wrong!r}: it must be a number from 0 to 10"
        assert problem in problem_of(pair.deployment())
    pair.head.write({"markov_rank": 4})
    write(**{"markov_w2.weight": (32, 5)})
    assert "tensor markov_w2.weight = [32, 5]: its shape must be [32, 4]" in problem_of(pair.deployment())
    pair.head.write({"markov_rank": 0})
    assert "config.json: markov_rank = 0: it must be a whole number from 1" in problem_of(pair.deployment())


def test_every_mismatch_is_reported_at_once(pair: Any) -> None:
    pair.head.write({"vocab_size": 64, "draft_vocab_size": 64, "ptd_token_id": None, "trained_depth": 3})
    with pytest.raises(ConfigError) as caught:
        check_checkpoints(pair.deployment())
    assert len(caught.value.problems) == 3


def test_a_shallow_target_needs_its_tapped_layers_named(pair: Any) -> None:
    pair.target.write({"num_hidden_layers": 4})
    pair.head.write({"eagle_aux_hidden_state_layer_ids": None})
    assert "vLLM's default for 4 layers, [2, 2, 1], repeats a layer" in problem_of(pair.deployment())


def test_a_deep_target_may_leave_its_tapped_layers_to_vllm(pair: Any) -> None:
    pair.head.write({"eagle_aux_hidden_state_layer_ids": None})
    check_checkpoints(pair.deployment())


def test_a_smaller_draft_vocabulary_needs_a_map_of_its_size(pair: Any) -> None:
    pair.head.write({"draft_vocab_size": 16}, {"d2t": (16,), "t2d": (32,), "lm_head.weight": (16, 8)})
    check_checkpoints(pair.deployment())
    pair.head.write({"draft_vocab_size": 16}, {"d2t": (8,), "lm_head.weight": (16, 8)})
    assert "tensor d2t = [8]: it must map 16 tokens" in problem_of(pair.deployment())
    pair.head.write({"draft_vocab_size": 16}, {"d2t": (16,), "lm_head.weight": None})
    assert "tensor lm_head.weight: it is missing" in problem_of(pair.deployment())


def test_a_head_narrower_than_its_target_brings_its_own_embedding(pair: Any) -> None:
    narrow = {"hidden_size": 4, "target_hidden_size": 8}
    shapes: dict[str, Any] = {
        "fc.weight": (4, 24),
        "mask_hidden": (1, 24),
        "embed_tokens.weight": (32, 4),
        "lm_head.weight": (32, 4),
    }
    pair.head.write(narrow, shapes)
    check_checkpoints(pair.deployment())
    pair.head.write(narrow, shapes | {"embed_tokens.weight": None})
    assert "tensor embed_tokens.weight: the target's has width 8, not 4" in problem_of(pair.deployment())


def test_a_head_may_share_its_target_s_embedding_and_head(pair: Any) -> None:
    pair.head.write(shapes={"embed_tokens.weight": None, "lm_head.weight": None})
    check_checkpoints(pair.deployment())


def test_a_context_longer_than_the_target_s_is_named_where_nothing_stretches_it(pair: Any) -> None:
    pair.target.write({"max_position_embeddings": 64})
    fits, longer = (pair.deployment().model_copy(update={"engine": {"max_model_len": count}}) for count in (64, 65))
    check_checkpoints(fits)
    assert "engine.max_model_len = 65: the target's context has 64 tokens. Lower it to 64." in problem_of(longer)
    check_checkpoints(longer.model_copy(update={"environment": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}}))
    for stretched in ({"rope_type": "yarn", "factor": 4.0}, {"full_attention": {"rope_type": "default"}}, "x"):
        pair.target.write({"max_position_embeddings": 64, "rope_parameters": stretched})
        check_checkpoints(longer)


def test_an_autoregressive_head_needs_no_mask(pair: Any) -> None:
    pair.head.write({"ptd_token_id": None}, {"mask_hidden": None})
    check_checkpoints(pair.deployment(method="eagle3"))
    assert "Use a P-EAGLE head, or write method: eagle3." in problem_of(pair.deployment())


def test_a_head_that_drafts_all_at_once_is_not_served_token_by_token(pair: Any) -> None:
    with pytest.raises(ConfigError, match="tensor mask_hidden: only a head that drafts all tokens at once has it"):
        check_checkpoints(pair.deployment(method="eagle3"))


def test_the_speculators_format_is_read_as_vllm_reads_it(pair: Any) -> None:
    layer = {key: pair.head.config[key] for key in ("hidden_size", "vocab_size", "num_hidden_layers")}
    config: dict[str, Any] = {
        "architectures": ["PEagleDraftModel"],
        "speculators_model_type": "peagle",
        "transformer_layer_config": layer,
        "hidden_size": None,
        "vocab_size": None,
        "num_hidden_layers": None,
        "ptd_token_id": None,
        "trained_depth": None,
        "mask_token_id": 1,
        "speculators_config": {"proposal_methods": [{"speculative_tokens": 8}]},
    }
    pair.head.write(config)
    check_checkpoints(pair.deployment())
    pair.head.write(config | {"speculators_config": {"proposal_methods": [{"speculative_tokens": 4}]}})
    assert "drafter.trained_depth = 8: the head was trained to depth 4" in problem_of(pair.deployment())


def test_the_sizes_of_a_multimodal_target_are_found(pair: Any) -> None:
    sizes = {key: pair.target.config[key] for key in ("hidden_size", "vocab_size", "num_hidden_layers")}
    pair.target.write(dict.fromkeys(sizes) | {"text_config": sizes})
    check_checkpoints(pair.deployment())


def test_a_remote_target_leaves_what_the_head_says_of_itself(pair: Any) -> None:
    pair.head.write({"ptd_token_id": None})
    checks = examine_checkpoints(parse_deployment(pair.raw(target={"source": "org/target"}), "tiny.yaml"))
    assert checks[0].outcome == "not checked"
    assert "org/target is remote" in checks[0].detail
    assert [check.name for check in checks if check.outcome == "wrong"] == ["mask token"]


def test_without_speculation_the_head_is_not_looked_at(pair: Any) -> None:
    nowhere = {"source": "./nowhere", "trained_depth": 8}
    check_checkpoints(parse_deployment(pair.raw(drafter=nowhere, speculation={"enabled": False}), "tiny.yaml"))


CONFIG, WEIGHTS = "config.json", "model.safetensors"


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        (CONFIG, None, "config.json: there is no such file"),
        (CONFIG, b"{", "config.json: it is not JSON"),
        (CONFIG, b"[]", "config.json: it holds a list, not a JSON object"),
        (WEIGHTS, None, "model.safetensors: there are no weights"),
        (WEIGHTS, slice(-1), "model.safetensors: it is cut short"),
        (WEIGHTS, slice(100), "model.safetensors: it is not a complete safetensors file"),
        (WEIGHTS, b"", "model.safetensors: it is not a complete safetensors file (0 bytes)"),
        (WEIGHTS, (40).to_bytes(8, "little") + b"\xff" * 200, "model.safetensors: its header is damaged"),
        (WEIGHTS, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "Run git lfs pull"),
    ],
)
def test_a_damaged_checkpoint_is_named(pair: Any, file: str, content: bytes | slice | None, words: str) -> None:
    """A file that is missing, replaced, or truncated."""
    deployment, path = pair.deployment(), pair.head.folder / file
    if content is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[content] if isinstance(content, slice) else content)
    line = problem_of(deployment)
    assert line.startswith("drafter.source")
    assert words in line


def test_a_checkpoint_that_is_no_folder_is_named(pair: Any) -> None:
    deployment = pair.deployment()
    pair.head.folder.rename(pair.head.folder.with_name("elsewhere"))
    assert "there is no such folder" in problem_of(deployment)
    pair.head.folder.write_text("")
    assert "it is a file, not a folder" in problem_of(deployment)


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {},
        {"dtype": "F16", "shape": [2], "data_offsets": [0, 8]},
        {"dtype": "F16", "shape": [-2], "data_offsets": [0, -4]},
        {"dtype": "F16", "shape": "2", "data_offsets": [0, 4]},
        {"dtype": "F16", "shape": [2], "data_offsets": ["0", "4"]},
        {"dtype": "F16", "shape": [2], "data_offsets": [4]},
        {"dtype": "F16", "shape": [1e400], "data_offsets": [0, 4]},
    ],
)
def test_a_header_that_lies_is_damaged(pair: Any, entry: object) -> None:
    header = json.dumps({"fc.weight": entry}).encode()
    deployment = pair.deployment()
    (pair.head.folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    assert "its header is damaged" in problem_of(deployment)


def test_sharded_weights_are_followed_through_their_index(pair: Any) -> None:
    folder = pair.head.write()
    index = folder / "model.safetensors.index.json"
    shards = {"fc.weight": "a.safetensors", "mask_hidden": "b.safetensors"}
    whole = {name: np.zeros(shape, np.float16) for name, shape in pair.head.shapes.items()}
    save_file({"mask_hidden": whole.pop("mask_hidden")}, folder / "b.safetensors")
    save_file(whole, folder / "a.safetensors")
    (folder / "model.safetensors").unlink()
    index.write_text(json.dumps({"weight_map": dict.fromkeys(whole, "a.safetensors") | shards}))
    check_checkpoints(pair.deployment())
    index.write_text(json.dumps({"weight_map": shards | {"norm.weight": "b.safetensors"}}))
    assert "b.safetensors: it lacks the tensor norm.weight" in problem_of(pair.deployment())
    index.write_text(json.dumps({"weight_map": shards | {"norm.weight": "c.safetensors"}}))
    assert "c.safetensors: there is no such file" in problem_of(pair.deployment())
    index.write_text(json.dumps({"weight_map": ["a"]}))
    assert "weight_map = ['a']: it must map tensors to files" in problem_of(pair.deployment())


def test_weights_in_another_format_are_left_to_the_engine(pair: Any) -> None:
    deployment = pair.deployment()
    (pair.head.folder / "model.safetensors").rename(pair.head.folder / "pytorch_model.bin")
    check_checkpoints(deployment)


def test_a_target_without_a_tokenizer_is_named_unless_the_engine_has_one(pair: Any) -> None:
    deployment = pair.deployment()
    (pair.target.folder / "tokenizer.json").unlink()
    assert "tokenizer.json: there is no tokenizer. Add it, or set engine.tokenizer." in problem_of(deployment)
    check_checkpoints(deployment.model_copy(update={"engine": {"tokenizer": "org/tokenizer"}}))


def test_no_engine_library_is_imported() -> None:
    heavy = "{'ray', 'vllm', 'torch', 'transformers'}"
    code = f"import peagle.engine.checks.validate, sys; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
