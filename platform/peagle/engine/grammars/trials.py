"""Checks in a separate process whether grammars compile within limits. Imports no vllm."""

import asyncio
import hashlib
import json
import logging
import math
import os
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from typing import Any, Self

from peagle.engine.grammars import trial_process
from peagle.engine.grammars.trial_process import ENDED, LARGE, SLOW
from peagle.errors import OverloadedError, PeagleError

_LOG = logging.getLogger(__name__)

# Trials that may begin at once, and how long each keeps its place. A usual grammar takes milliseconds.
PLACES, QUICK_S = 4, 0.25
# Trials that may continue after that, at low priority. If all these places are taken, a further trial is rejected.
SLOW_PLACES, SLOW_NICENESS = 2, 19
# A request without a place within this time is rejected, before its client gives up.
PLACE_TIMEOUT_S = 1.0
# Added to the time limit, which the kernel enforces, for a machine that is too busy to start the trial.
GRACE_S = 1.0
# Outcomes remembered, by digest, and for how long a refusal counts: a less busy machine might not have refused.
REMEMBERED, REFUSED_S = 4096, 600.0


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar to compile: `kind` is `json`, `regex`, `grammar` or `structural_tag`."""

    kind: str
    text: str

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(f"{self.kind}\0{self.text}".encode("utf-8", "surrogatepass")).digest()


def slow_refusal(mask_s_max: float) -> str:
    """Return the message for a client whose grammar takes longer than `mask_s_max` for a token."""
    return (
        f"The request's grammar takes more than {mask_s_max * 1000:g} ms to follow for one token, which "
        "delays other requests. Send a simpler one; the server's limit is api.grammar.max_mask_s."
    )


class Trials:
    """Compiles grammars in forks of a process, each with time and memory limits, and remembers the outcomes."""

    def __init__(
        self, tokenizer_info: str, timeout_s: float, memory_bytes: int, mask_s_max: float, *, any_whitespace: bool
    ) -> None:
        """Args:
        tokenizer_info: xgrammar's, serialized.
        timeout_s: Longest time that a grammar may compile.
        memory_bytes: Most memory that a compilation may allocate.
        mask_s_max: Longest time that the mask of one token may take.
        any_whitespace: Whether JSON may contain any whitespace, as vLLM asks xgrammar for it.
        """
        self._mask_s_max = mask_s_max
        self._tokenizer_info, self._any_whitespace = tokenizer_info, any_whitespace
        self._timeout_s, self._memory_bytes = timeout_s, memory_bytes
        self._places, self._slow_places = asyncio.Semaphore(PLACES), asyncio.Semaphore(SLOW_PLACES)
        self._known: OrderedDict[bytes, _Outcome] = OrderedDict()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def start(self) -> None:
        """Start the process, unless it is running. Trials may be requested at once: they wait for it."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", trial_process.__file__, str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=[theirs.fileno()],
                # A fork would lose OpenBLAS threads, and each malloc arena reserves memory that counts.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"},
            )
        assert self._process.stdin is not None
        with self._process.stdin as tokenizer:
            tokenizer.write(self._tokenizer_info.encode())

    def close(self) -> None:
        """End the process; running trials end with it."""
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    async def refusal(self, grammar: Grammar) -> str | None:
        """Return why `grammar` may not compile; None if it may, or fails so soon that the engine can report it.

        Raises:
            OverloadedError: Other grammars are on trial, and this one found no place.
            PeagleError: The trial process does not start.
        """
        digest, now_s = grammar.digest, time.monotonic()
        known = self._known.get(digest)
        if known is None or known.until_s < now_s:
            refusal = await self._try(grammar)
            known = _Outcome(refusal, now_s + REFUSED_S if refusal else math.inf)
        self._remember(digest, known)
        return known.refusal

    def refuse(self, grammar: Grammar, refusal: str) -> None:
        """Remember that `grammar` passed its trial but failed later."""
        self._remember(grammar.digest, _Outcome(refusal, time.monotonic() + REFUSED_S))

    def _remember(self, digest: bytes, outcome: "_Outcome") -> None:
        self._known[digest] = outcome
        self._known.move_to_end(digest)
        if len(self._known) > REMEMBERED:
            self._known.popitem(last=False)

    async def _try(self, grammar: Grammar) -> str | None:
        for _ in range(2):
            try:
                async with asyncio.timeout(PLACE_TIMEOUT_S):
                    await self._places.acquire()
            except TimeoutError:
                raise self._overloaded() from None
            with ExitStack() as place:
                place.callback(self._places.release)
                self.start()
                assert self._control is not None
                with closing(await _Trial.begin(self._control, self._question(grammar))) as trial:
                    if not trial.began:  # its process has ended
                        _LOG.warning("The process that compiles grammars on trial has ended; another is started.")
                        continue
                    if not await trial.ends_within(QUICK_S):
                        place.close()
                        if self._slow_places.locked():
                            raise self._overloaded()
                        trial.give_way()
                        async with self._slow_places:
                            await trial.ends_within(self._timeout_s + GRACE_S)
                    return self._refusal(trial)
        raise PeagleError("Grammars cannot be compiled now.")

    def _overloaded(self) -> OverloadedError:
        return OverloadedError("Grammars of other requests are being compiled.", self._timeout_s)

    def _question(self, grammar: Grammar) -> dict[str, Any]:
        return {
            "kind": grammar.kind,
            "text": grammar.text,
            "any_whitespace": self._any_whitespace,
            "timeout_s": self._timeout_s,
            "memory_bytes": self._memory_bytes,
            "mask_s_max": self._mask_s_max,
        }

    def _refusal(self, trial: "_Trial") -> str | None:
        if trial.said == ENDED:
            return None
        if trial.said == SLOW:
            return slow_refusal(self._mask_s_max)
        # A trial stopped at its time limit says nothing. One that dies much earlier has crashed for lack of memory.
        if trial.said != LARGE and trial.seconds > self._timeout_s / 2:
            passed, setting = f"longer than {self._timeout_s:g} s", "compile_timeout_s"
        else:
            passed, setting = f"more than {self._memory_bytes} bytes of memory", "compile_memory_bytes"
        return (
            f"The request's grammar took {passed} to compile and try, and was stopped. "
            f"Send a simpler one; the server's limit is api.grammar.{setting}."
        )


@dataclass(frozen=True, slots=True)
class _Outcome:
    refusal: str | None
    until_s: float


class _Trial:
    """One grammar's compilation in another process, which the kernel ends when this is closed."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._began_s = time.monotonic()
        self._end: asyncio.Task[bytes] | None = None
        self._group = 0
        self.seconds = 0.0

    @classmethod
    async def begin(cls, control: socket.socket, question: dict[str, Any]) -> Self:
        """Ask the process at the other end of `control`; return once the trial has begun, or cannot begin."""
        ours, theirs = socket.socketpair()
        # If the process is gone, the other end is closed, which counts as an answer.
        with theirs, suppress(OSError):
            socket.send_fds(control, [b"\0"], [theirs.fileno()])
        trial = cls(*await asyncio.open_connection(sock=ours))
        try:
            await trial._ask(question)
        except BaseException:
            trial.close()
            raise
        return trial

    async def _ask(self, question: dict[str, Any]) -> None:
        with suppress(ConnectionError):
            self._writer.write(json.dumps(question).encode())
            self._writer.write_eof()
            self._group = int(await self._reader.readline() or 0)
        self._began_s = time.monotonic()
        self._end = asyncio.create_task(self._reader.read())

    @property
    def began(self) -> bool:
        return self._group > 0

    def give_way(self) -> None:
        """Lower the trial's priority, so that other processes get the cores."""
        with suppress(ProcessLookupError):  # it has already ended
            os.setpriority(os.PRIO_PGRP, self._group, SLOW_NICENESS)

    async def ends_within(self, timeout_s: float) -> bool:
        """Return whether it has ended, by itself or by the kernel, within `timeout_s`."""
        assert self._end is not None
        ended, _ = await asyncio.wait({self._end}, timeout=timeout_s)
        self.seconds = time.monotonic() - self._began_s
        return bool(ended)

    @property
    def said(self) -> bytes:
        """The outcome that it reported; empty if it did not end by itself."""
        if self._end is None or not self._end.done() or self._end.exception():
            return b""
        return self._end.result()

    def close(self) -> None:
        if self._end is not None:
            self._end.cancel()
        self._writer.close()
