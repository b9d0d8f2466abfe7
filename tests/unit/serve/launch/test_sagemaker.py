"""Deployments from SM_VLLM_ variables, checked against the arguments of the installed vLLM."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from peagle.config import parse_deployment
from peagle.engine.checks.argument_checks import examine_arguments
from peagle.engine.checks.check import raise_problems
from peagle.errors import ConfigError
from peagle.serve.launch.sagemaker import sagemaker_deployment
from support.paths import DEPLOYMENTS

P_EAGLE = {
    "method": "eagle3",
    "model": "amazon/GPT-OSS-20B-P-EAGLE",
    "num_speculative_tokens": 7,
    "parallel_drafting": True,
}


def deployed(accelerator: str = "gpu", folder: Path = Path("/nowhere"), **variables: str) -> dict[str, Any]:
    """Return the deployment, after the checks of a deployment file."""
    environment = {"HOME": "/root", "SAGEMAKER_REGION": "x", **{f"SM_VLLM_{name}": v for name, v in variables.items()}}
    raw = sagemaker_deployment(environment, accelerator, folder)
    raise_problems(examine_arguments(parse_deployment(raw, "SageMaker")))
    return raw


def test_a_repository_is_served_by_its_own_name() -> None:
    assert deployed(MODEL="openai/gpt-oss-20b", REVISION="v1") == {
        "name": "openai/gpt-oss-20b",
        "target": {"source": "openai/gpt-oss-20b", "revision": "v1"},
        "speculation": {"enabled": False},
        "replicas": {"min": 1, "max": 1},
        "resources": {"accelerator": "gpu", "tensor_parallel_size": 1},
    }


def test_the_model_of_the_endpoint_is_served_unless_another_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    with pytest.raises(ConfigError, match=r"SM_VLLM_MODEL: it is not set, and .*model has no model"):
        deployed(folder=folder)
    shutil.copytree(DEPLOYMENTS / "embedded" / "target", folder)
    raw = deployed(folder=folder)
    assert (raw["name"], raw["target"]) == ("model", {"source": str(folder)})
    assert deployed(folder=folder, MODEL="a/b")["target"] == {"source": "a/b"}
    assert deployed(folder=folder, SERVED_MODEL_NAME="mine")["name"] == "mine"


@pytest.mark.parametrize(
    ("name", "text", "argument", "value"),
    [
        ("MAX_MODEL_LEN", "4096", "max_model_len", 4096),
        ("MAX_NUM_SEQS", " 64 ", "max_num_seqs", 64),
        ("GPU_MEMORY_UTILIZATION", "0.85", "gpu_memory_utilization", 0.85),
        ("ENFORCE_EAGER", "", "enforce_eager", True),
        ("ENFORCE_EAGER", "true", "enforce_eager", True),
        ("ENFORCE_EAGER", "False", "enforce_eager", False),
        ("NO_ENABLE_PREFIX_CACHING", "", "enable_prefix_caching", False),
        ("ENABLE_PREFIX_CACHING", "true", "enable_prefix_caching", True),
        ("DTYPE", "bfloat16", "dtype", "bfloat16"),
        ("QUANTIZATION", "fp8", "quantization", "fp8"),
        ("TOKENIZER_REVISION", "12", "tokenizer_revision", "12"),
        ("TOOL_CALL_PARSER", "hermes", "tool_call_parser", "hermes"),
        ("HF_OVERRIDES", '{"a": 1}', "hf_overrides", {"a": 1}),
        ("LIMIT_MM_PER_PROMPT", '{"image": 2}', "limit_mm_per_prompt", {"image": 2}),
    ],
)
def test_an_argument_of_vllm_is_one_of_the_engine(name: str, text: str, argument: str, value: object) -> None:
    assert deployed(MODEL="a/b", **{name: text})["engine"] == {argument: value}


def test_ranks_and_engines_are_resources_and_replicas() -> None:
    raw = deployed(MODEL="a/b", TENSOR_PARALLEL_SIZE="2", DATA_PARALLEL_SIZE="4")
    assert raw["resources"] == {"accelerator": "gpu", "tensor_parallel_size": 2}
    assert raw["replicas"] == {"min": 4, "max": 4}
    assert deployed("cpu", MODEL="a/b")["resources"]["accelerator"] == "cpu"


def test_a_drafter_that_drafts_in_parallel_is_p_eagle_and_adapts() -> None:
    raw = deployed(MODEL="openai/gpt-oss-20b", SPECULATIVE_CONFIG=json.dumps(P_EAGLE))
    assert raw["drafter"] == {"source": "amazon/GPT-OSS-20B-P-EAGLE", "method": "p-eagle", "trained_depth": 7}
    assert raw["speculation"] == {"depth_max": 7, "depth_static": 7}
    assert parse_deployment(raw, "SageMaker").adapts


def test_another_drafter_is_eagle3() -> None:
    config = {key: value for key, value in P_EAGLE.items() if key != "parallel_drafting"} | {"revision": "r"}
    raw = deployed(MODEL="a/b", SPECULATIVE_CONFIG=json.dumps(config))
    assert (raw["drafter"]["method"], raw["drafter"]["revision"]) == ("eagle3", "r")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("MAX_MODEL_LENGTH", "4096", "SM_VLLM_MAX_MODEL_LENGTH = '4096': it is not a vLLM argument that"),
        ("MAX_MODEL_LENGTH", "4096", "Did you mean SM_VLLM_MAX_MODEL_LEN?"),
        ("XYZZY", "", "SM_VLLM_XYZZY = '': it is not a vLLM argument that peagle supports. Remove it"),
        ("MAX_MODEL_LEN", "long", "SM_VLLM_MAX_MODEL_LEN = 'long': vLLM expects a whole number."),
        ("ENFORCE_EAGER", "yes", "SM_VLLM_ENFORCE_EAGER = 'yes': vLLM expects true or false."),
        ("NO_MAX_MODEL_LEN", "", "SM_VLLM_NO_MAX_MODEL_LEN = '': it is not a vLLM argument"),
        ("PORT", "8000", "SM_VLLM_PORT = '8000': SageMaker calls port 8080. Remove it."),
        ("SCHEDULER_CLS", "x", "SM_VLLM_SCHEDULER_CLS = 'x': it is set by the platform itself. Remove it."),
        ("SPEC_MODEL", "x", "SM_VLLM_SPEC_MODEL = 'x': it is set by SM_VLLM_SPECULATIVE_CONFIG. Remove it."),
        ("SERVED_MODEL_NAME", '["a", "b"]', "SM_VLLM_SERVED_MODEL_NAME = ['a', 'b']: a model has exactly one name"),
        ("SPECULATIVE_CONFIG", "{", "SM_VLLM_SPECULATIVE_CONFIG = '{': vLLM expects fields."),
        ("SPECULATIVE_CONFIG", '{"method": "ngram"}', "SM_VLLM_SPECULATIVE_CONFIG.method = 'ngram': peagle drafts"),
        ("SPECULATIVE_CONFIG", '{"depth": 1}', "SM_VLLM_SPECULATIVE_CONFIG.depth = 1: it is not a drafter setting"),
        ("SPECULATIVE_CONFIG", '{"parallel_drafting": true}', "SM_VLLM_SPECULATIVE_CONFIG.model: it must name the"),
        ("SPECULATIVE_CONFIG", '{"model": "a/b"}', "SM_VLLM_SPECULATIVE_CONFIG.num_speculative_tokens: it must be a"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_named_as_it_was_written(name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as wrong:
        deployed(MODEL="a/b", **{name: text})
    assert message in str(wrong.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as wrong:
        deployed(MODEL="a/b", XYZZY="1", MAX_MODEL_LEN="long")
    assert len(wrong.value.problems) == 2
