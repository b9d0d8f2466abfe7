"""`peagle validate` checks the whole file and reports problems instead of raising."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from peagle.engine.checks.validate import validate_file

Write = Callable[[str], Path]


def test_a_deployment_that_can_be_served_has_no_problem(deployment_file: Write, pair: Any) -> None:
    report = validate_file(deployment_file(yaml.safe_dump(pair.raw())))
    assert report.problems == ()
    assert report.deployment == pair.deployment()
    assert {check.subject for check in report.checks} == {"file", "engine", "target", "drafter"}


def test_a_wrong_file_is_reported_with_all_its_problems(deployment_file: Write) -> None:
    path = deployment_file("nme: tiny\n")
    report = validate_file(path)
    assert report.deployment is None
    assert [check.outcome for check in report.checks] == ["wrong"]
    assert [problem.field for problem in report.problems] == [f"{path}: {name}" for name in ("name", "target", "nme")]


def test_problems_of_a_checkpoint_name_the_file_too(deployment_file: Write) -> None:
    path = deployment_file("name: t\ntarget: {source: ./nowhere}\nspeculation: {enabled: false}\n")
    (problem,) = validate_file(path).problems
    assert str(problem).startswith(f"{path}: target.source = ")
    assert "there is no such folder" in str(problem)


def test_a_repository_is_not_downloaded_and_that_is_said(deployment_file: Write) -> None:
    path = deployment_file("name: t\ntarget: {source: org/t}\nspeculation: {enabled: false}\n")
    report = validate_file(path)
    assert report.problems == ()
    (check,) = [check for check in report.checks if check.subject == "target"]
    assert (check.outcome, check.detail) == ("not checked", "org/t is remote")


ADAPTIVE = """
name: t
target: {source: %s}
drafter: {source: org/d, trained_depth: 8}
speculation: {adaptive: true}
resources: {accelerator_type: %s}
"""


def test_the_source_of_the_cost_prior_is_reported_if_depth_adapts(deployment_file: Write) -> None:
    report = validate_file(deployment_file(ADAPTIVE % ("openai/gpt-oss-20b", "H200")))
    (check,) = [check for check in report.checks if check.name == "cost prior"]
    assert (check.subject, check.outcome) == ("target", "ok")
    assert check.detail == "the known size of openai/gpt-oss-20b, on H200"


def test_a_stand_in_prior_is_reported_but_not_a_problem(deployment_file: Write) -> None:
    report = validate_file(deployment_file(ADAPTIVE % ("org/unheard-of", "null")))
    assert report.problems == ()
    (check,) = [check for check in report.checks if check.name == "cost prior"]
    assert check.outcome == "not checked"
    for part in ("target.source = 'org/unheard-of'", "gpt-oss-20b's size stands in", "resources.accelerator_type"):
        assert part in check.detail


def graphs_told(write: Write, *lines: str) -> list[tuple[str, str]]:
    report = validate_file(write("\n".join([ADAPTIVE % ("org/t", "H200"), *lines])))
    return [(check.outcome, check.detail) for check in report.checks if check.name == "CUDA graphs"]


def test_the_graphs_that_a_gpu_s_engine_captures_are_told(deployment_file: Write) -> None:
    ((outcome, detail),) = graphs_told(deployment_file, "engine: {max_num_seqs: 128}")
    assert outcome == "ok"
    assert detail == (
        "144 full graphs for decode steps and 27 sizes of piecewise graphs, up to 1792 tokens, expected to take 21 s "
        "and 2.6 GiB"
    )


def test_batches_without_a_graph_are_reported(deployment_file: Write) -> None:
    many = "engine: {max_num_seqs: 1024, max_num_batched_tokens: 4096}"
    ((outcome, detail),) = graphs_told(deployment_file, many)
    assert outcome == "caution"
    assert detail.endswith("left out: K = 5 from 641 to 1024 requests, K = 7 from 513 to 1024 requests")
    assert graphs_told(deployment_file, "engine: {enforce_eager: true}") == [
        ("caution", "engine.enforce_eager leaves every step without a full graph")
    ]
    ((outcome, detail),) = graphs_told(deployment_file, "engine: {max_cudagraph_capture_size: 512}")
    assert outcome == "not checked"
    assert "limited by the sizes in the engine section" in detail


def test_without_a_gpu_no_graphs_are_reported(deployment_file: Write) -> None:
    text = (ADAPTIVE % ("org/t", "null")).replace("accelerator_type", "accelerator: cpu, accelerator_type")
    assert "CUDA graphs" not in {check.name for check in validate_file(deployment_file(text)).checks}


def test_the_prior_is_not_reported_if_depth_is_static(deployment_file: Write) -> None:
    report = validate_file(deployment_file(ADAPTIVE.replace("true", "false") % ("org/t", "null")))
    assert "cost prior" not in {check.name for check in report.checks}
