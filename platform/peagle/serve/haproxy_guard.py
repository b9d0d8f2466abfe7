"""Runs one HAProxy, and restarts it if it ends unexpectedly.

For Ray Serve's manager this process is HAProxy: the manager starts it, signals it, and reads its process id at the
admin socket. So the guard answers there on HAProxy's behalf, with HAProxy's answers and its own id. HAProxy itself
takes commands on a second socket, from which the next HAProxy takes over its listeners.
"""

import asyncio
import logging
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from peagle.errors import StartupError
from peagle.host import processes

logger = logging.getLogger(__name__)

# Signals that make HAProxy release its port, take it back, and end after its last answer.
_PASSED_ON = (signal.SIGTTOU, signal.SIGTTIN)
_STOPS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
_SOCKET = re.compile(r"^(    stats socket )(\S+)", re.MULTILINE)
_ANSWER_S = 5.0
_POLL_S = 0.05
# A HAProxy that ends this soon after its start, this many times in a row, has a fault that a restart does not fix.
_SHORT_LIFE_S, _SHORT_LIVES_MAX = 2.0, 5


class Guard:
    """Runs HAProxy.

    Args:
        binary: HAProxy's program.
        arguments: Serve's arguments: the configuration, and at a reload the processes that it replaces.
        configuration: Contents for the file given with `-f`.

    Raises:
        StartupError: The configuration names no admin socket.
    """

    def __init__(self, binary: str, arguments: Sequence[str], configuration: str) -> None:
        found = _SOCKET.search(configuration)
        if found is None:
            raise StartupError(
                "Ray Serve's configuration of HAProxy names no admin socket",
                "Install the version of Ray that peagle asks for, or set RAY_SERVE_ENABLE_HA_PROXY=0",
            )
        self._public = Path(found[2])
        self._own = _socket_of(self._public, os.getpid())
        # A separate file: Serve overwrites its own before the next reload.
        file = self._public.with_name(f"{os.getpid()}.cfg")
        file.write_text(_SOCKET.sub(rf"\g<1>{self._own}", configuration, count=1))
        self._command, self._takes_over = _command(binary, arguments, file, self._public)
        self._files = (file, self._own)
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def run(self) -> int:
        """Run HAProxy until it has stopped on request; return its exit status."""
        loop = asyncio.get_running_loop()
        for number in (*_PASSED_ON, *_STOPS):
            loop.add_signal_handler(number, self._pass_on, number)
        extra: Sequence[str] = self._takes_over
        short_lives = 0
        server: asyncio.Server | None = None
        try:
            while True:
                began_s = time.monotonic()
                self._process = await asyncio.create_subprocess_exec(
                    *self._command, *extra, preexec_fn=processes.end_with_parent
                )
                if server is None and await self._is_up():
                    server = await self._answer_for_it()
                status = await self._process.wait()
                short_lives = short_lives + 1 if time.monotonic() - began_s < _SHORT_LIFE_S else 0
                if self._stopping or server is None or short_lives == _SHORT_LIVES_MAX:
                    return status if status >= 0 else 128 - status
                print(f"HAProxy ended with status {status}; restarting it.", file=sys.stderr, flush=True)
                extra = ()
        finally:
            if server is not None:
                server.close()
            for file in self._files:
                file.unlink(missing_ok=True)

    def _pass_on(self, number: signal.Signals) -> None:
        self._stopping = self._stopping or number in _STOPS
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)

    async def _is_up(self) -> bool:
        """Wait until HAProxy answers on its own socket, or has ended."""
        assert self._process is not None
        while self._process.returncode is None:
            if await self._said(b"show info\n"):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _answer_for_it(self) -> asyncio.Server:
        """Listen on the socket that Serve uses, replacing the previous listener."""
        new = self._public.with_name(f"{os.getpid()}.new")
        server = await asyncio.start_unix_server(self._relay, new)
        new.rename(self._public)
        return server

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                command = await reader.readline()
            said = await self._said(command)
            writer.write(re.sub(rb"^Pid: \d+$", b"Pid: %d" % os.getpid(), said, flags=re.MULTILINE))
            await writer.drain()
        except (OSError, TimeoutError, ValueError) as error:
            logger.info("A command to HAProxy failed: %r", error)
        finally:
            writer.close()

    async def _said(self, command: bytes) -> bytes:
        """Return HAProxy's answer to `command`; empty if it does not answer."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_unix_connection(self._own)
                try:
                    writer.write(command)
                    return await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return b""


def _socket_of(public: Path, pid: int) -> Path:
    """Return the command socket of the HAProxy below process `pid`. Short, because socket paths are limited."""
    return public.with_name(f"{pid}.sock")


def _command(binary: str, arguments: Sequence[str], file: Path, public: Path) -> tuple[list[str], list[str]]:
    """Split Serve's arguments into those of every start, and those of a first start that replaces another HAProxy."""
    start, takes_over = [binary], list[str]()
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "-f":
            rest.pop(0)
            start += ["-f", str(file)]
        elif argument == "-sf":
            replaced = []
            while rest and rest[0].isdigit():
                replaced.append(rest.pop(0))
            takes_over += ["-sf", *replaced]
            if replaced and (listeners := _socket_of(public, int(replaced[0]))).exists():
                takes_over += ["-x", str(listeners)]
        elif argument == "-x":  # the socket of the replaced HAProxy, which differs
            rest.pop(0)
        else:
            start.append(argument)
    return start, takes_over
