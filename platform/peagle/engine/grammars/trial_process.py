"""A process that compiles grammars on trial: it forks for each, and the kernel ends what passes a limit.

`python trial_process.py FD`: the serialized tokenizer comes on standard input; each message on
the socket `FD` brings another socket, which carries one trial. It ends when `FD` is closed.
It imports nothing of peagle.

What compiles is not sent back: for large grammars, writing it out and reading it in again take longer than compiling
does, and gigabytes.
"""

import fcntl
import json
import os
import resource
import signal
import socket
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

STARTED, ENDED = b"S", b"E"
"""What a trial says as it begins, and where it comes to an end by itself: the grammar compiles, or is none."""

# As many as vLLM compiles with.
THREADS = 8
# Engines and those who serve go first.
NICENESS = 10
# Where memory runs out, the kernel ends a trial rather than an engine.
OOM_SCORE = 1000


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as control:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; whoever started this closes the socket
        os.nice(NICENESS)
        compiler = _compiler(sys.stdin.read())
        while True:
            message, descriptors, _, _ = socket.recv_fds(control, 1, 1)
            if not message:
                return
            with socket.socket(fileno=descriptors[0]) as trial:
                if os.fork() == 0:
                    _try(compiler, trial)


def _compiler(tokenizer_info: str) -> Any:
    """Load xgrammar's compiler alone: the rest of it needs torch and transformers, 250 MB and many seconds."""
    # Hidden, no library looks for it. It is not what compiles.
    sys.modules["torch"] = None  # type: ignore[assignment]
    spec = find_spec("xgrammar")
    assert spec is not None, "vLLM requires it"
    sys.modules["xgrammar"] = package = ModuleType("xgrammar")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["transformers"] = hidden = ModuleType("transformers")
    for name in ("PreTrainedTokenizerBase", "PreTrainedTokenizerFast"):
        setattr(hidden, name, object)
    for name in ("exception", "load_binding"):  # which the package itself imports first
        import_module(f"xgrammar.{name}")
    from xgrammar.compiler import GrammarCompiler
    from xgrammar.tokenizer_info import TokenizerInfo

    info = TokenizerInfo.deserialize_json(tokenizer_info)
    return GrammarCompiler(info, max_threads=THREADS, cache_enabled=False)


def _try(compiler: Any, trial: socket.socket) -> None:
    """Compile one grammar in this fork, and end."""
    try:
        with trial.makefile("rb") as reader:
            asked = json.loads(reader.read())
        _limit(trial, asked["timeout_s"], asked["memory_bytes"])
        trial.sendall(STARTED)
        try:
            compile_grammar(compiler, asked["kind"], asked["text"], asked["any_whitespace"])
        except Exception as error:
            # Anything else is the grammar's own mistake, which vLLM tells in better words.
            if isinstance(error, MemoryError) or "bad_alloc" in str(error):
                return
        trial.sendall(ENDED)
    finally:
        os._exit(0)


def _limit(trial: socket.socket, timeout_s: float, memory_bytes: int) -> None:
    """Have the kernel end this process when its time is over, or when whoever asked has hung up."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory_bytes, taken + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    fcntl.fcntl(trial, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(trial, fcntl.F_SETFL, fcntl.fcntl(trial, fcntl.F_GETFL) | os.O_ASYNC)


def compile_grammar(compiler: Any, kind: str, text: str, any_whitespace: bool) -> None:
    """Compile as vLLM's `XgrammarBackend.compile_grammar` does; `kind` is one of its options, in lower case."""
    match kind:
        case "json":
            compiler.compile_json_schema(text, any_whitespace=any_whitespace)
        case "regex":
            compiler.compile_regex(text)
        case "grammar":
            compiler.compile_grammar(text)
        case "structural_tag":
            tag = json.loads(text)
            if "structures" not in tag:
                compiler.compile_structural_tag(text)
                return
            item = import_module("xgrammar.structural_tag").StructuralTagItem
            items = [
                item(begin=each["begin"], schema=json.dumps(each["schema"]), end=each["end"])
                for each in tag["structures"]
            ]
            compiler.compile_structural_tag(items, tag["triggers"])


if __name__ == "__main__":
    main()
