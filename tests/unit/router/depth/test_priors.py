"""Priors of step times, from what is known about target and device."""

import pytest

from peagle.config.deployment import ACCELERATOR_TYPES
from peagle.router.depth import DEVICES, EMBEDDED_CPU, TARGETS, TargetSize, cpu_prior, known_target

EMBEDDED = TargetSize(0.022020096, 0.0, 11_010_048.0)


def test_every_known_device_is_one_that_a_deployment_may_name() -> None:
    assert set(DEVICES) <= set(ACCELERATOR_TYPES)


@pytest.mark.parametrize(
    ("repository", "name"),
    [
        ("openai/gpt-oss-20b", "gpt-oss-20b"),
        ("other/GPT-OSS-120B", "gpt-oss-120b"),
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct-FP8", "qwen3-coder-30b-a3b"),
        ("google/gemma-4-31B-it", "gemma-4-31b"),
    ],
)
def test_published_targets_are_known_by_name(repository: str, name: str) -> None:
    assert known_target(repository) is TARGETS[name]


@pytest.mark.parametrize(
    "repository", ["org/t", "org/gpt-oss-20b-BF16", "Qwen/Qwen3-Coder-30B-A3B-Instruct", "gpt-oss-20b/other"]
)
def test_a_target_of_a_name_that_only_resembles_one_is_not_known(repository: str) -> None:
    assert known_target(repository) is None


@pytest.mark.parametrize("cores", [1, 8])
def test_the_embedded_model_has_its_measured_prior_on_any_number_of_cores(cores: int) -> None:
    assert cpu_prior(EMBEDDED, cores) == EMBEDDED_CPU


def test_a_larger_target_takes_longer_and_cores_share_what_is_more() -> None:
    twelve = TargetSize(12 * EMBEDDED.dense_gb, 0.0, 12 * EMBEDDED.active_parameters)
    one, eleven = cpu_prior(twelve), cpu_prior(twelve, cores=11)
    assert one.weights_s == pytest.approx(12 * EMBEDDED_CPU.weights_s)
    assert one.token_s == pytest.approx(12 * EMBEDDED_CPU.token_s)
    assert eleven.weights_s == pytest.approx(2 * EMBEDDED_CPU.weights_s)
    assert one.draft_s > eleven.draft_s > EMBEDDED_CPU.draft_s
    assert (one.step_s, one.sequence_s) == (EMBEDDED_CPU.step_s, EMBEDDED_CPU.sequence_s)


def test_experts_on_a_cpu_are_read_as_they_become_active() -> None:
    prior = cpu_prior(TARGETS["gpt-oss-20b"], cores=2)
    assert (prior.experts, prior.experts_active) == (32, 4)
    assert prior.experts_s == pytest.approx(prior.weights_s * 10.2 / 2.4, rel=0.01)


def test_a_smaller_target_still_takes_time() -> None:
    prior = cpu_prior(TargetSize(1e-6, 0.0, 500.0))
    assert min(prior.weights_s, prior.token_s, prior.draft_s) > 0
