"""Free ports for servers that start later."""

import random
import socket
from contextlib import ExitStack

from peagle.errors import StartupError

HOST = "127.0.0.1"
PORTS = range(20_000, 30_000)
"""Ports below the ephemeral range, between Ray's worker ports and Serve's ingress ports."""


def free_ports(count: int) -> list[int]:
    """Return `count` free ports outside the ephemeral range. Raises StartupError if there are too few."""
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
    raise StartupError(f"no {count} free ports from {PORTS.start} to {PORTS.stop - 1}", "Stop programs that use them.")
