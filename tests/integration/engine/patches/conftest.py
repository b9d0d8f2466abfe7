import pytest


@pytest.fixture(scope="session", autouse=True)
def vllm_with_cpu_kernels() -> None:
    """Do once what a worker and the CPU model runner do when they start."""
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.spec_decode import llm_base_proposer

    from peagle.engine.patches.patch_table import install_patches
    from peagle.upstream import Process

    install_patches(Process.WORKER)
    current_platform.import_kernels()
    llm_base_proposer.copy_and_expand_eagle_inputs_kernel = cpu_triton_utils.copy_and_expand_eagle_inputs_kernel
    for kernel in (
        "rejection_greedy_sample_kernel",
        "rejection_random_sample_kernel",
        "expand_kernel",
        "sample_recovered_tokens_kernel",
    ):
        setattr(rejection_sampler, kernel, getattr(cpu_triton_utils, kernel))
