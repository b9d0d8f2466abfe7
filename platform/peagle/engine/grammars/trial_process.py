"""Process that compiles grammars on trial: it forks for each, and the kernel ends forks that exceed a limit.

`python trial_process.py FD`: the serialized tokenizer comes on standard input; each message on
the socket `FD` brings another socket, which carries one trial. It ends when `FD` is closed.
It imports nothing of peagle.

The compiled grammar is not sent back: for large grammars, serializing it takes gigabytes and longer than compiling.
"""

import fcntl
import json
import os
import random
import resource
import signal
import socket
import sys
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

ENDED, SLOW, LARGE = b"E", b"S", b"L"
"""How a trial ended by itself: the grammar compiles or is invalid; it compiles, but token masks are slow; it ran out of
memory. A trial begins with a line, the number of its process group."""

# At most vLLM's own number of compile threads.
THREADS = min(8, os.cpu_count() or 1)
# Tokens for which masks are computed. A grammar that compiles in milliseconds may take minutes for each.
TOKENS = 32
# Engines and serving processes have priority.
NICENESS = 5
# If memory runs out, the kernel should end a trial, not an engine.
OOM_SCORE = 1000


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as control:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # from a terminal; the parent closes the socket
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
    """Load only xgrammar's compiler and matcher: the rest needs torch and transformers, 250 MB and many seconds."""
    # Hidden, so that no library imports it; the compiler and matcher do not use it.
    sys.modules["torch"] = None  # type: ignore[assignment]
    import_module("tvm_ffi")
    sys.modules["torch"] = torch = ModuleType("torch")
    vars(torch).update(int32=None, Tensor=object, tensor=lambda *_, **__: None)
    spec = find_spec("xgrammar")
    assert spec is not None, "vLLM requires it"
    sys.modules["xgrammar"] = package = ModuleType("xgrammar")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["transformers"] = hidden = ModuleType("transformers")
    vars(hidden).update(PreTrainedTokenizerBase=object, PreTrainedTokenizerFast=object)
    # In the package's own order; includes what each fork would otherwise import.
    for name in ("exception", "load_binding", "matcher"):
        import_module(f"xgrammar.{name}")
    from xgrammar.compiler import GrammarCompiler
    from xgrammar.tokenizer_info import TokenizerInfo

    info = TokenizerInfo.deserialize_json(tokenizer_info)
    return GrammarCompiler(info, max_threads=THREADS, cache_enabled=False)


def _try(compiler: Any, trial: socket.socket) -> None:
    """Compile one grammar in this fork, and exit."""
    try:
        with trial.makefile("rb") as reader:
            asked = json.loads(reader.read())
        _limit(trial, asked["timeout_s"], asked["memory_bytes"])
        os.setpgid(0, 0)
        trial.sendall(b"%d\n" % os.getpid())
        try:
            compiled = compile_grammar(compiler, asked["kind"], asked["text"], asked["any_whitespace"])
            if has_slow_mask(compiled, asked["mask_s_max"]):
                trial.sendall(SLOW)
                return
        except Exception as error:
            # Any other error is the grammar's own mistake, which vLLM explains better.
            if isinstance(error, MemoryError) or "bad_alloc" in str(error):
                trial.sendall(LARGE)
                return
        trial.sendall(ENDED)
    finally:
        os._exit(0)


def _limit(trial: socket.socket, timeout_s: float, memory_bytes: int) -> None:
    """Make the kernel end this process at its time limit, or when the caller closes the connection."""
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + memory_bytes, taken + memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))
    signal.setitimer(signal.ITIMER_REAL, timeout_s)
    fcntl.fcntl(trial, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(trial, fcntl.F_SETFL, fcntl.fcntl(trial, fcntl.F_GETFL) | os.O_ASYNC)


def compile_grammar(compiler: Any, kind: str, text: str, any_whitespace: bool) -> Any:
    """Compile as vLLM's `XgrammarBackend.compile_grammar` does; `kind` is one of its options, in lower case."""
    match kind:
        case "json":
            return compiler.compile_json_schema(text, any_whitespace=any_whitespace)
        case "regex":
            return compiler.compile_regex(text)
        case "grammar":
            return compiler.compile_grammar(text)
        case "structural_tag":
            tag = json.loads(text)
            if "structures" not in tag:
                return compiler.compile_structural_tag(text)
            item = import_module("xgrammar.structural_tag").StructuralTagItem
            items = [
                item(begin=each["begin"], schema=json.dumps(each["schema"]), end=each["end"])
                for each in tag["structures"]
            ]
            return compiler.compile_structural_tag(items, tag["triggers"])


def has_slow_mask(compiled: Any, mask_s_max: float) -> bool:
    """Return whether one of a few random tokens of a grammar takes more than `mask_s_max` of processor time."""
    import numpy as np

    matcher = import_module("xgrammar.matcher").GrammarMatcher(compiled)
    tokens = compiled.tokenizer_info.vocab_size
    mask = np.empty((1, -(-tokens // 32)), dtype=np.int32)
    choice = random.Random(0)
    for _ in range(TOKENS):
        mask.fill(-1)
        began_s = time.thread_time()
        matcher.fill_next_token_bitmask(mask)
        mask_s = time.thread_time() - began_s
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), count=tokens, bitorder="little"))
        began_s = time.thread_time()
        goes_on = len(allowed) > 0 and matcher.accept_token(int(choice.choice(allowed))) and not matcher.is_terminated()
        if mask_s + time.thread_time() - began_s > mask_s_max:
            return True
        if not goes_on:
            return False
    return False


if __name__ == "__main__":
    main()
