"""Two engines that the tests of this folder share: the target alone, and the target with its drafter and live depth."""

from collections.abc import Iterator

import pytest

from peagle.config import Deployment
from support.engine_runner import Runner, embedded, running

ENGINE = {
    # For the reason that test_live_depth.py gives.
    "dtype": "float32",
    "enforce_eager": True,
    # Room for 8 usual requests, not for 8 that go on for long.
    "max_num_seqs": 8,
    "block_size": 32,
    "num_gpu_blocks_override": 100,
    # Longer prompts, such as one of test_seed.py, are prefilled in parts.
    "long_prefill_token_threshold": 512,
    # A model this small otherwise indents until its tokens run out.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
# A step that clients share has room for three requests, each with all seven of its drafts.
STEP_TOKENS = 3 * 8


@pytest.fixture(scope="session")
def deployment() -> Deployment:
    return embedded(**ENGINE)


@pytest.fixture(scope="package")
def plain(deployment: Deployment) -> Iterator[Runner]:
    """The target alone."""
    speculation = deployment.speculation.model_copy(update={"enabled": False})
    with running(deployment.model_copy(update={"speculation": speculation})) as runner:
        yield runner


@pytest.fixture(scope="package")
def runner(deployment: Deployment, plain: Runner) -> Iterator[Runner]:
    """Started after the one without: vLLM's counters are those of the engine that was started last."""
    routing = deployment.routing.model_copy(update={"step_tokens_shared": STEP_TOKENS})
    with running(deployment.model_copy(update={"routing": routing})) as runner:
        yield runner
