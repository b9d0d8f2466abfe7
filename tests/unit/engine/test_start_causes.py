from pathlib import Path

import pytest

from peagle.engine.start_causes import LONGEST_CAUSE, Cause, find_cause, find_cause_in, tell_briefly

LOG = """
(ServeReplica pid=7) INFO 11-20 16:00:00 [core.py:89] Initializing a V1 LLM engine with speculative_config=None
(EngineCore pid=9) ERROR 11-20 16:00:01 [core.py:866] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-20 16:00:01 [core.py:866]   File "cpu_worker.py", line 60, in __init__
(EngineCore pid=9) ERROR 11-20 16:00:01 [core.py:866] ValueError: Available memory on node 0 is less than requested.
(ServeReplica pid=7) RuntimeError: Engine core initialization failed. See root cause above.
(ServeController pid=3) ray.exceptions.RayTaskError(RuntimeError): ray::ServeReplica
"""


def test_the_cause_is_the_first_exception_not_what_followed_from_it() -> None:
    assert find_cause(LOG) == Cause("Available memory on node 0 is less than requested")


def test_what_an_engine_argument_is_refused_for_is_below_two_tracebacks() -> None:
    log = """
(ServeController pid=3) ray.exceptions.RayTaskError(RuntimeError): ray::ServeReplica
(ServeController pid=3)     raise RuntimeError(traceback.format_exc()) from None
(ServeController pid=3) RuntimeError: Traceback (most recent call last):
(ServeController pid=3)   File "replica.py", line 1867, in initialize
(ServeController pid=3) RuntimeError: Failed to create vLLM engine config: 1 validation error for ModelConfig
(ServeController pid=3)   Value error, User-specified max_model_len (9) is too long. [type=value_error, input=...]
(ServeController pid=3)     For further information visit https://errors.pydantic.dev
"""
    assert find_cause(log) == Cause("User-specified max_model_len (9) is too long")


def test_a_log_without_an_exception_has_no_cause() -> None:
    assert find_cause("INFO all is well\nWARNING nearly") is None


def test_colours_and_module_paths_are_taken_off() -> None:
    assert find_cause("\x1b[36m(pid=1)\x1b[0m peagle.errors.StartupError: no head here. Name one.") == (
        Cause("no head here. Name one")
    )


def test_a_long_cause_is_cut_to_one_readable_line() -> None:
    found = find_cause("ValueError: " + "x" * 10_000)
    assert found is not None
    assert len(found.problem) == LONGEST_CAUSE


def test_a_missing_log_has_no_cause(tmp_path: Path) -> None:
    assert find_cause_in(tmp_path / "absent.log") is None


# Lines as vLLM 0.29, torch 2.13, transformers 5 and compilers print them, and words of the fix.
KNOWN = {
    "x.cpp:1:10: fatal error: Python.h: No such file or directory": "headers",
    "torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx": "g++",
    "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist": "nvcc",
    "RuntimeError: The NVIDIA driver on your system is too old (found version 12040).": "580",
    "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory": "device plugin",
    "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device": "PyTorch",
    "ValueError: Free memory on device cuda:0 (1.2/79.1 GiB) on startup is less than desired GPU memory utilization "
    "(0.9, 71.2 GiB).": "engine.gpu_memory_utilization",
    "ValueError: Available memory on node 0 (1.2/3.5 GiB) on startup is less than desired CPU memory utilization "
    "(0.9)": "engine.kv_cache_memory_bytes",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB.": "resources.tensor_parallel_size",
    "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`": "resources.tensor",
    "ValueError: To serve at least one request with the models's max seq len (131072), (12.00 GiB KV cache is needed, "
    "which is larger than the available KV cache memory (3.10 GiB).": "engine.max_model_len",
    "ValueError: User-specified max_model_len (9000) is greater than the derived max_model_len (4096)": "max_model_len",
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': -9}": (
        "workerGroups.*.memory"
    ),
    "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1'": "sharedMemory",
    "OSError: [Errno 28] No space left on device": "modelCache.size",
    "OSError: You are trying to access a gated repo.": "huggingFace.existingSecret",
    "OSError: We couldn't connect to 'https://huggingface.co' to load the files": "networkPolicy",
    "OSError: acme/none is not a local folder and is not a valid model identifier listed on": "target.source",
    "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata": "download it again",
    "AssertionError: Tried to load weights of size torch.Size([64, 192])to a parameter of size torch.Size([64, 96])": (
        "trained for this target"
    ),
    "ValueError: Model architectures ['FooForCausalLM'] are not supported for now. Supported": "vLLM supports",
    "ValueError: Total number of attention heads (9) must be divisible by tensor parallel size (2).": "divisor",
    "ValueError: The quantization method mxfp4 is not supported for the current GPU. Minimum capability: 80.": "newer",
    "ValueError: The repository acme/x contains custom code which must be executed to correctly load the model.": (
        "engine.trust_remote_code"
    ),
    "AssertionError: All drafting layers should belong to the same kv cache group": "disable_hybrid_kv_cache_manager",
    "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:77, unhandled system error": "NCCL_DEBUG",
}


@pytest.mark.parametrize("line", KNOWN, ids=[text.partition(": ")[2][:40] for text in KNOWN])
def test_a_known_cause_is_told_with_its_fix(line: str) -> None:
    log = f"""
(EngineCore pid=9) INFO 11-20 16:00:00 [core.py:89] Initializing a V1 LLM engine
(EngineCore pid=9) ERROR 11-20 16:00:01 [core.py:866] EngineCore failed to start.
(EngineCore pid=9) ERROR 11-20 16:00:01 [core.py:866] {line}
(ServeReplica pid=7) RuntimeError: Engine core initialization failed. See root cause above.
"""
    found = find_cause(log)
    assert found is not None
    assert KNOWN[line] in found.fix
    assert found.problem in line
    assert "EngineCore pid" not in found.problem


def test_memory_that_is_taken_may_be_free_at_the_next_try() -> None:
    found = find_cause("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 896.00 MiB.")
    assert found is not None
    assert not found.lasting


def test_a_warning_is_no_cause() -> None:
    warned = "(EngineCore pid=9) WARNING 11-20 16:00:00 [x.py:1] Could not find nvcc\n"
    assert find_cause(warned) is None
    assert find_cause(warned + "ValueError: no such thing") == Cause("no such thing")


SERVES_MESSAGE = """The deployment failed to start 1 times in a row. See controller logs for details.
Error:
ray::ServeReplica:peagle:PeagleServer.initialize_and_get_metadata() (pid=145, ip=10.244.0.6)
RuntimeError: Traceback (most recent call last):
  File "replica.py", line 1867, in initialize
{error}
"""


def test_serves_message_is_shortened_to_the_cause_and_its_fix() -> None:
    told = "peagle.errors.StartupError: The engine did not start: no Python.h. Install it."
    assert tell_briefly(SERVES_MESSAGE.format(error=told)) == "The engine did not start: no Python.h. Install it."
    other = "ValueError: The quantization method mxfp4 is not supported for the current GPU."
    assert tell_briefly(SERVES_MESSAGE.format(error=other)).startswith("The quantization method mxfp4 is not supported")
    assert tell_briefly(SERVES_MESSAGE.format(error="KeyError: 'x'")) == "'x'."
    assert tell_briefly("Deploying app 'peagle'.") == "Deploying app 'peagle'."
