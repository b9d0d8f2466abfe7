"""Deployment files: what is read, and that everything wrong is named with its path, its value and the fix."""

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from peagle.config import Deployment, load_deployment, parse_deployment
from peagle.errors import ConfigError

Write = Callable[[str], Path]
WHOLE: dict[str, Any] = {
    "name": "tiny",
    "target": {"source": "org/target", "revision": "main"},
    "drafter": {"source": "org/head", "method": "p-eagle", "trained_depth": 8},
    "speculation": {"enabled": True, "live_depth": True, "depth_max": 7, "depth_static": 5},
    "engine": {"dtype": "bfloat16", "quantization_config": {"moe": {"activation": "mxfp8"}}},
    "environment": {"HF_HOME": "/models"},
    "replicas": {"min": 1, "max": 4},
    "resources": {"accelerator": "gpu", "accelerator_type": "B200", "tensor_parallel_size": 2, "cpus": 4},
    "routing": {"max_ongoing_requests": 64, "max_queued_requests": -1},
}


def problems(raw: dict[str, Any], origin: str = "x.yaml") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_deployment(raw, origin)
    return [str(problem) for problem in caught.value.problems]


def with_field(path: str, value: object) -> dict[str, Any]:
    """WHOLE with the field at `path` set to `value`."""
    raw: dict[str, Any] = {key: dict(part) if isinstance(part, dict) else part for key, part in WHOLE.items()}
    *sections, name = path.split(".")
    holder = raw
    for section in sections:
        holder = holder.setdefault(section, {})
    holder[name] = value
    return raw


def test_a_whole_file_is_read(deployment_file: Write) -> None:
    deployment = load_deployment(deployment_file(yaml.safe_dump(WHOLE)))
    assert deployment == Deployment.model_validate(WHOLE)
    assert deployment.drafter is not None
    assert (deployment.drafter.trained_depth, deployment.speculation.depth_static) == (8, 5)


def test_a_short_file_takes_the_defaults(deployment_file: Write) -> None:
    text = "name: tiny\ntarget: {source: org/target}\nspeculation: {enabled: false}\n"
    deployment = load_deployment(deployment_file(text))
    assert (deployment.replicas.min, deployment.replicas.max, deployment.drafter) == (1, 1, None)


def test_a_whole_number_stands_for_a_fraction() -> None:
    assert parse_deployment(with_field("resources.cpus", 1), "x.yaml").resources.cpus == 1.0


def test_local_checkpoints_start_from_the_file_s_folder(deployment_file: Write, tmp_path: Path) -> None:
    text = "name: t\ntarget: {source: ./weights/t}\ndrafter: {source: /heads/h, trained_depth: 8}\n"
    deployment = load_deployment(deployment_file(text))
    assert deployment.drafter is not None
    assert (deployment.target.source, deployment.drafter.source) == (str(tmp_path / "weights/t"), "/heads/h")


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("name", "my model", "start with a letter or digit"),
        ("name", False, "Put it in quotes"),
        ("target", "org/target", "must hold fields"),
        ("target.source", "", "it is empty"),
        ("target.source", "a/b/c", "./a/b/c for a folder"),
        ("target.source", "./a\0b", "control character"),
        ("target.revision", 1234567, "Put it in quotes"),
        ("drafter.method", "eagle", "'p-eagle' or 'eagle3'"),
        ("drafter.trained_depth", 0, "at least 1"),
        ("drafter.trained_depth", True, "whole number"),
        ("speculation.depth_max", 7.0, "whole number"),
        ("speculation.depth_max", "7", "without quotes"),
        ("speculation.depth_max", 65, "at most 64"),
        ("speculation.enabled", "yes", "true or false"),
        ("replicas.min", 0, "at least 1"),
        ("resources.accelerator", "tpu", "'cpu' or 'gpu'"),
        ("resources.cpus", float("nan"), "finite"),
        ("resources.cpus", float("inf"), "finite"),
        ("resources.cpus", 0, "above 0"),
        ("resources.cpus", True, "a number"),
        ("routing.max_queued_requests", 0, "-1 for no bound"),
        ("routing.policy", "fastest", "Known: soonest"),
        ("routing.policy", "fastest", "power-of-two."),
        ("routing.policy", False, "Put it in quotes"),
        ("engine.model", "org/other", "set by target.source"),
        ("engine.--max-model-len", 1024, "max_model_len"),
        ("engine.seed", float("nan"), "finite"),
        ("engine.seed", b"1", "not a plain value"),
        ("engine.structured_outputs_config", "xgrammar", "Write fields such as backend: xgrammar"),
        ("engine.structured_outputs_config.backend", "auto", "the first request would choose for all"),
        ("engine.structured_outputs_config.backend", "outlines", "Write xgrammar or guidance"),
        ("replicas", None, "must hold fields"),
        # What nothing here could use is refused with a reason.
        ("engine.enable_lora", True, "a drafter is trained for its target's own weights"),
        ("engine.enable_sleep_mode", True, "nothing here wakes an engine that sleeps"),
        ("engine.tool_server", "demo", "no replica runs tools"),
        ("speculation.depth_static", 8, "it is above depth_max, which is 7"),
        ("replicas.max", 0, "at least 1"),
    ],
)
def test_a_wrong_value_is_named_with_its_path_value_and_fix(field: str, value: object, words: str) -> None:
    (line,) = problems(with_field(field, value))
    assert line.startswith(f"x.yaml: {field}")
    assert words in line
    assert value is None or f"= {value!r}" in line


@pytest.mark.parametrize(
    ("raw", "field", "words"),
    [
        (with_field("speculation.depth_max", 9), "speculation.depth_max = 9", "Lower it to 8"),
        (with_field("drafter", None), "drafter", "Add a drafter"),
        (with_field("replicas.min", 5), "replicas.max = 4", "5 or more"),
        (
            with_field("resources", {"accelerator": "cpu", "tensor_parallel_size": 2}),
            "resources.tensor_parallel_size = 2",
            "Write 1",
        ),
        (
            with_field("resources", {"accelerator": "cpu", "accelerator_type": "B200"}),
            "resources.accelerator_type = 'B200'",
            "Remove it",
        ),
        (
            with_field("resources.accelerator_type", "h100"),
            "resources.accelerator_type = 'h100'",
            "Write H100. Without",
        ),
        (with_field("resources.accelerator_type", "fast"), "resources.accelerator_type = 'fast'", "H100 or B200"),
        (
            with_field("resources", {"accelerator": "cpu"}) | {"engine": {"pipeline_parallel_size": 2}},
            "engine.pipeline_parallel_size = 2",
            "Write 1",
        ),
        (with_field("target", {"source": "./t", "revision": "v1"}), "target.revision = 'v1'", "Remove it"),
        (
            with_field("speculation", {"by_request": True, "adaptive": False}),
            "speculation.by_request",
            "Write adaptive: true.",
        ),
    ],
)
def test_fields_that_disagree_name_both(raw: dict[str, Any], field: str, words: str) -> None:
    (line,) = problems(raw)
    assert line.startswith(f"x.yaml: {field}")
    assert words in line


def test_reading_deployment_files_does_not_wait_for_numpy() -> None:
    code = "import peagle.config, sys; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_a_drafter_may_wait_while_speculation_is_off() -> None:
    raw = with_field("speculation", {"enabled": False, "depth_max": 20})
    assert not parse_deployment(raw, "x.yaml").speculates


def test_every_wrong_field_is_reported_at_once() -> None:
    raw = {
        "nme": "m",
        "target": {"sorce": "x"},
        "drafter": {"source": "o/h", "trained_depth": 0},
        "replicas": {"max": "x"},
    }
    named = [line.split(" ")[1].rstrip(":") for line in problems(raw)]
    assert named == ["name", "target.source", "target.sorce", "drafter.trained_depth", "replicas.max", "nme"]


def test_an_unknown_field_lists_what_its_own_section_knows() -> None:
    (line,) = problems(with_field("speculation.depth_mx", 7))
    known = (
        "enabled, live_depth, adaptive, by_request, depth_max, depth_static, inter_token_s_max, calibration_s, "
        "graph_s_max, graph_gib_max"
    )
    assert f"Did you mean depth_max? Known in speculation: {known}." in line
    (line,) = problems(with_field("drafter.colour", "red"))
    assert "there is no such field. Known in drafter: source, revision, method, trained_depth." in line


def test_a_field_in_the_wrong_section_is_sent_to_the_right_one() -> None:
    (line,) = problems(with_field("tensor_parallel_size", 2))
    assert "Did you mean resources.tensor_parallel_size?" in line


def test_a_variable_s_value_is_never_shown() -> None:
    for value in (123456, ["secret"], "secret\0"):
        (line,) = problems(with_field("environment.HF_TOKEN", value))
        assert line.startswith("x.yaml: environment.HF_TOKEN: ")
        assert "secret" not in line
        assert "123456" not in line


def test_a_field_s_name_cannot_fill_the_screen() -> None:
    assert all(len(line) < 400 for line in problems({**WHOLE, "x" * 5000: 1}))


def test_a_variable_that_would_keep_every_answer_is_refused() -> None:
    (line,) = problems(with_field("environment.VLLM_ENABLE_RESPONSES_API_STORE", "1"))
    assert line.startswith("x.yaml: environment.VLLM_ENABLE_RESPONSES_API_STORE: ")
    assert "would keep every answer for ever" in line


POOLING: dict[str, Any] = {
    "name": "m",
    "target": {"source": "org/embeds"},
    "engine": {"runner": "pooling"},
    "resources": {"accelerator": "cpu"},
}


def test_a_model_that_embeds_needs_nothing_said_of_speculation() -> None:
    for raw in (POOLING, {**POOLING, "speculation": {"enabled": False}}):
        deployment = parse_deployment(raw, "x.yaml")
        assert (deployment.pools, deployment.speculates, deployment.adapts) == (True, False, False)
    assert not parse_deployment(WHOLE, "x.yaml").pools


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"drafter": WHOLE["drafter"]}, "drafter = ", "generates none to be drafted"),
        ({"speculation": {}}, "speculation.enabled = True", "generates none to be drafted"),
        (
            {"speculation": {"depth_max": 3, "depth_static": 3}},
            "speculation.enabled = True",
            "generates none to be drafted",
        ),
        ({"engine": {"convert": "embed"}}, "engine.convert = 'embed'", "engine.runner: pooling"),
    ],
)
def test_a_model_that_embeds_says_so_and_has_nothing_to_draft(fields: dict[str, Any], place: str, words: str) -> None:
    (line,) = problems({**POOLING, **fields})
    assert line.startswith(f"x.yaml: {place}")
    assert words in line


def test_what_is_written_off_is_not_refused() -> None:
    assert parse_deployment(with_field("engine.enable_lora", False), "x.yaml").engine["enable_lora"] is False
    assert parse_deployment(with_field("environment.VLLM_ENABLE_RESPONSES_API_STORE", "0"), "x.yaml").environment


def test_names_that_are_not_text_are_refused() -> None:
    (line,) = problems({**WHOLE, 1: 2})
    assert "must be text" in line


def test_values_nested_beyond_reason_are_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(2000):
        deep = {"a": deep}
    (line,) = problems(with_field("engine.additional_config", deep))
    assert line.startswith("x.yaml: engine.additional_config")


def test_a_replica_takes_an_accelerator_for_each_rank_of_each_stage() -> None:
    assert parse_deployment(WHOLE, "x").devices == 2
    staged = parse_deployment(with_field("engine.pipeline_parallel_size", 3), "x")
    assert (staged.devices, staged.pipeline_parallel_size) == (6, 3)


def test_an_unknown_home_is_named() -> None:
    with pytest.raises(ConfigError, match=r"target\.source = '~nobody-here/t'"):
        parse_deployment(with_field("target", {"source": "~nobody-here/t"}), "x.yaml", base=Path())


def test_whatever_stands_in_a_field_only_a_config_error_comes_out(deployment_file: Write) -> None:
    """Lays random values over random fields: a deployment is read or refused, nothing else ever happens."""
    chance = random.Random(20)
    odd = [
        None,
        True,
        -1,
        0,
        10**30,
        0.5,
        float("nan"),
        "",
        "x",
        "é\n",
        "../..",
        [],
        [1],
        {},
        {"a": {"b": [None]}},
        {1: 2},
    ]
    paths = [f"{key}.{name}" for key, part in WHOLE.items() if isinstance(part, dict) for name in [*part, "odd"]]
    outcomes, unclear = set(), []
    for _ in range(200):
        raw = WHOLE
        for path in chance.sample([*WHOLE, *paths], k=chance.randint(1, 3)):
            section, _, name = path.partition(".")
            holder = raw[section] if name and isinstance(raw[section], dict) else {}
            raw = {**raw, section: {**holder, name: chance.choice(odd)} if name else chance.choice(odd)}
        try:
            load_deployment(deployment_file(yaml.safe_dump(raw, allow_unicode=True)))
            outcomes.add("read")
        except ConfigError as error:
            outcomes.add("refused")
            unclear += [problem for problem in error.problems if not (problem.problem and problem.fix)]
    assert outcomes == {"read", "refused"}
    assert not unclear


@pytest.mark.parametrize(
    ("accelerator", "speculation", "shares"),
    [
        ("cpu", {}, True),
        ("gpu", {}, False),
        ("gpu", {"by_request": True}, True),
        ("cpu", {"by_request": False}, False),
        ("cpu", {"adaptive": False}, False),
    ],
)
def test_drafts_are_shared_out_by_request_where_depth_adapts_on_a_cpu(
    accelerator: str, speculation: dict[str, Any], shares: bool
) -> None:
    raw = with_field("resources", {"accelerator": accelerator}) | {"speculation": speculation}
    assert parse_deployment(raw, "x.yaml").shares_drafts is shares
