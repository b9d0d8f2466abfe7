"""Ports for what starts later."""

import random
import socket
from contextlib import ExitStack

from peagle.errors import StartupError

HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Below those that systems hand out to whoever asks for any, between Ray's for workers and Serve's for ingress."""


def free_ports(count: int) -> list[int]:
    """Find ports that nobody has now, nor gets by chance while a model loads. Raises StartupError where they lack."""
    found: list[int] = []
    with ExitStack() as held:
        for port in random.sample(PORTS, len(PORTS)):
            listener = held.enter_context(socket.socket())
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
            found.append(port)
            if len(found) == count:
                return found
    raise StartupError(f"no {count} ports are free from {PORTS.start} to {PORTS.stop - 1}", "End what has taken them.")
