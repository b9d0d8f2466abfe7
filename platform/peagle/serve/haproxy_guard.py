"""Stands above one HAProxy, and starts it again wherever it ends unasked.

To Ray Serve's manager this process is HAProxy: the manager starts it, signals it, and asks at the admin socket for its
process id. So it answers there in HAProxy's stead, with what HAProxy says and its own id. HAProxy itself listens for
commands at a socket beside that one, which the next HAProxy takes its listeners from.
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

# Signals by which HAProxy is asked to give its port up, to take it back, and to end when it has answered.
_PASSED_ON = (signal.SIGTTOU, signal.SIGTTIN)
_STOPS = (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT)
_SOCKET = re.compile(r"^(    stats socket )(\S+)", re.MULTILINE)
_ANSWER_S = 5.0
_POLL_S = 0.05
# One that ends so soon after its start, so many times in a row, has a reason that a start does not mend.
_SHORT_LIFE_S, _SHORT_LIVES_MAX = 2.0, 5


class Guard:
    """Runs HAProxy.

    Args:
        binary: Its program.
        arguments: What Serve gives it: the configuration, and at a reload which processes it replaces.
        configuration: What the file behind `-f` should say.

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
        # A file of its own: Serve writes the other anew before the next reload.
        file = self._public.with_name(f"{os.getpid()}.cfg")
        file.write_text(_SOCKET.sub(rf"\g<1>{self._own}", configuration, count=1))
        self._command, self._takes_over = _command(binary, arguments, file, self._public)
        self._files = (file, self._own)
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = False

    async def run(self) -> int:
        """Run HAProxy until it is asked to stop and has; return its exit status."""
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
                print(f"HAProxy ended with status {status} and is started again.", file=sys.stderr, flush=True)
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
        """Wait until HAProxy answers at its own socket, or has ended."""
        assert self._process is not None
        while self._process.returncode is None:
            if await self._said(b"show info\n"):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _answer_for_it(self) -> asyncio.Server:
        """Listen at the socket that Serve knows, in place of whoever did."""
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
            logger.info("A question to HAProxy failed: %r", error)
        finally:
            writer.close()

    async def _said(self, command: bytes) -> bytes:
        """What HAProxy says to `command`; nothing where it does not answer."""
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
    """Where the HAProxy below the process `pid` takes commands. Short: paths of sockets are bounded."""
    return public.with_name(f"{pid}.sock")


def _command(binary: str, arguments: Sequence[str], file: Path, public: Path) -> tuple[list[str], list[str]]:
    """Split Serve's arguments: those of every start, and those of a first one that replaces another."""
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
        elif argument == "-x":  # the socket of whoever is replaced, which is another
            rest.pop(0)
        else:
            start.append(argument)
    return start, takes_over
