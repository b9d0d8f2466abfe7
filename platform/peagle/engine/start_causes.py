"""Finds why an engine did not start, in a log of many processes and nested tracebacks, and how to mend it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

# In Serve's message about a deployment, and in vLLM's about its engine core.
FAILED_START = "failed to start"
# The end of a traceback: an exception's name and message, after any process, time and level prefix.
_RAISED = re.compile(r"\b((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (\S.*)$")
# Exceptions that other processes raise because an engine died; the cause comes before them.
_CONSEQUENCES = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    FAILED_START,
    "RayTaskError",
    # An exception whose message is another traceback, which follows.
    "Error: Traceback (most recent call last)",
)
# pydantic describes the problem in a later line, which ends like this.
_INVALID, _TYPE = re.compile(r"\d+ validation errors? for \w+$"), " [type="
_PROCESS = re.compile(r"^\([^)]*\)\s*")
# Level, time and place of vLLM's log lines.
_LEVEL = re.compile(r"^(?:DEBUG|INFO|WARNING|ERROR) \d\d-\d\d \d\d:\d\d:\d\d \[[^]]*\]\s*")
# Of a log line that reports no failure.
_NO_FAILURE = re.compile(r"\b(?:DEBUG|INFO|WARNING) \d")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# A replica's own error, with cause and fix.
_TOLD = re.compile(r"peagle\.errors\.StartupError: (.+)")
LONGEST_CAUSE = 400


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an engine did not start.

    Attributes:
        problem: The line of the log that tells it.
        fix: What mends it; empty if that is unknown.
        lasting: Whether every further try would fail in the same way.
    """

    problem: str
    fix: str = ""
    lasting: bool = False


@dataclass(frozen=True, slots=True)
class _Known:
    pattern: str
    fix: str
    lasting: bool = True


# Too little memory is not lasting: a replica that is ending may hold it still.
_KNOWN = (
    _Known(
        r"Python\.h: No such file",
        "Install Python's headers, such as Debian's python3.11-dev: the model's kernels are compiled with them.",
    ),
    _Known(
        r"No working C\+\+ compiler found|Failed to find C compiler",
        "Install g++, or name a compiler in CC and CXX; engine.enforce_eager: true does without one on a CPU.",
    ),
    _Known(
        r"Could not find nvcc|nvcc: (command )?not found|'nvcc'|CUDA_HOME environment variable is not set",
        "Install CUDA's compiler nvcc, or use an image that has it: kernels are compiled with it.",
    ),
    _Known(
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        "Update the NVIDIA driver of this machine or node: CUDA 13 needs 580 or newer.",
    ),
    _Known(
        r"libcuda\.so\.1: cannot open|Failed to infer device type|No CUDA GPUs are available|Found no NVIDIA driver",
        "Give the replica a GPU with NVIDIA's driver; on Kubernetes its device plugin or operator has to be installed. "
        "Without a GPU, set resources.accelerator: cpu.",
    ),
    _Known(
        r"no kernel image is available for execution",
        "Use a GPU that the installed PyTorch is built for: this one is too old or too new for it.",
    ),
    _Known(
        r"is less than desired GPU memory utilization",
        "End what else uses the GPU, or lower engine.gpu_memory_utilization.",
        lasting=False,
    ),
    _Known(
        r"is less than desired CPU memory utilization",
        "Give the replica more memory, or lower engine.kv_cache_memory_bytes.",
        lasting=False,
    ),
    _Known(
        r"CUDA out of memory|CUDA error: out of memory",
        "Lower engine.gpu_memory_utilization or engine.max_num_seqs, or raise resources.tensor_parallel_size.",
        lasting=False,
    ),
    _Known(
        r"No available memory for the cache blocks",
        "Raise engine.gpu_memory_utilization, or spread the weights over more GPUs with "
        "resources.tensor_parallel_size.",
        lasting=False,
    ),
    _Known(
        r"is larger than the available KV cache",
        "Lower engine.max_model_len, or raise engine.gpu_memory_utilization, on a CPU engine.kv_cache_memory_bytes.",
        lasting=False,
    ),
    _Known(
        r"greater than the derived max_model_len",
        "Lower engine.max_model_len to the number that the message names.",
    ),
    _Known(
        r"Failed core proc\(s\): \{.*: -9\b",
        "The kernel ended the engine, most likely for lack of memory: give it more, in the chart "
        "workerGroups.*.memory, or lower engine.max_num_seqs and the KV cache.",
        lasting=False,
    ),
    _Known(
        r"/dev/shm.*No space left|No space left.*/dev/shm|\bBus error\b|unable to allocate shared memory",
        "Make /dev/shm larger: in the chart workerGroups.*.sharedMemory, with Docker --shm-size.",
    ),
    _Known(
        r"No space left on device",
        "Free disk space; in the chart raise modelCache.size or workerGroups.*.ephemeralStorage.",
        lasting=False,
    ),
    _Known(
        r"gated repo|is a gated repository|401 Client Error|403 Client Error",
        "Accept the model's licence on its page, and set HF_TOKEN; in the chart huggingFace.existingSecret.",
    ),
    _Known(
        r"couldn't connect to 'http|Temporary failure in name resolution|LocalEntryNotFoundError",
        "Let this machine or node reach the model hub, or name a folder in target.source and drafter.source; in the "
        "chart see networkPolicy and modelCache.",
        lasting=False,
    ),
    _Known(
        r"is not a valid model identifier|Repository Not Found|does not appear to have a file named"
        r"|Cannot find any model weights",
        "Check target.source and drafter.source, and that the files are there.",
    ),
    _Known(
        r"SafetensorError|HeaderTooLarge|InvalidHeaderDeserialization|MetadataIncompleteBuffer",
        "Delete this checkpoint, in the chart from the model cache, and download it again: a file is incomplete.",
    ),
    _Known(
        r"Tried to load weights of size|size mismatch for ",
        "Use the drafter that was trained for this target: the weights have other shapes than the model.",
    ),
    _Known(
        r"Model architectures \[.*\] are not supported",
        "Serve a model that vLLM supports: https://docs.vllm.ai/en/latest/models/supported_models/.",
    ),
    _Known(
        r"must be divisible by tensor parallel size",
        "Set resources.tensor_parallel_size to a divisor of the number that the message names.",
    ),
    _Known(
        r"is not supported for the current GPU",
        "Use a newer GPU, or a checkpoint with another quantization.",
    ),
    _Known(
        r"contains custom code which must be executed",
        "Set engine.trust_remote_code: true if you trust the repository's code.",
    ),
    _Known(
        r"All drafting layers should belong to the same kv cache group",
        "Set engine.disable_hybrid_kv_cache_manager: true, which needs more KV memory.",
    ),
    _Known(
        r"NCCL error|ncclUnhandledCudaError|ncclSystemError",
        "Set NCCL_DEBUG: INFO in environment and read NCCL's own reason in the log; often /dev/shm is too small.",
        lasting=False,
    ),
)


def find_cause(text: str) -> Cause | None:
    """Return the known cause that `text` tells first, else its first exception that is not a consequence of another."""
    lines = _COLOUR.sub("", text).splitlines()
    for line in lines:
        known = next((each for each in _KNOWN if re.search(each.pattern, line)), None)
        if known is not None and not _NO_FAILURE.search(line):
            return Cause(_bare(line), known.fix, known.lasting)
    for number, line in enumerate(lines):
        found = _RAISED.search(line)
        if found and not any(mark in line for mark in _CONSEQUENCES):
            problem = _invalid(lines[number + 1 :]) if _INVALID.search(line) else None
            return Cause(_short(problem or found.group(2)))
    return None


def find_cause_in(log: Path) -> Cause | None:
    try:
        return find_cause(log.read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return None


def tell_briefly(message: str) -> str:
    """Return the cause and the fix in Serve's message about a failed start; other messages as they are."""
    told = _TOLD.search(message)
    if told:
        return told[1].strip()
    cause = find_cause(message) if FAILED_START in message else None
    return message if cause is None else f"{cause.problem}. {cause.fix}".strip()


def _bare(line: str) -> str:
    """Return a log line without its process, level, time, place and exception's name."""
    line = _LEVEL.sub("", _PROCESS.sub("", line.strip())).strip()
    raised = _RAISED.search(line)
    return _short(raised.group(2) if raised else line)


def _short(problem: str) -> str:
    return problem.strip().rstrip(".")[:LONGEST_CAUSE]


def _invalid(lines: Iterable[str]) -> str | None:
    """Return the first of pydantic's errors in the lines after its headline."""
    complaint = next((line for line in islice(lines, 5) if _TYPE in line), None)
    if complaint is None:
        return None
    return _PROCESS.sub("", complaint).partition(_TYPE)[0].strip().removeprefix("Value error, ")
