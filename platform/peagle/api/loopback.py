"""Restriction to callers on the server's own machine: some routes, and Serve's ports in a one-machine cluster."""

import functools
import os
import sys
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

from peagle.host.addresses import is_address, is_loopback

ONE_MACHINE, YES = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0"
"""Ray's variable for systems with a firewall prompt per port: in a one-machine cluster, Ray then uses loopback."""


def answer_on_loopback() -> None:
    """In a one-machine cluster, make this replica's gRPC port listen on loopback only. Idempotent.

    Serve opens the port on every address, and executes any call sent there, because calls are pickled.
    """
    if os.environ.get(ONE_MACHINE) != YES:
        return
    from ray.serve._private.replica import add_port_to_grpc_server

    if hasattr(add_port_to_grpc_server, "__wrapped__"):
        return

    @functools.wraps(add_port_to_grpc_server)
    def add_on_loopback(server: Any, address: str) -> Any:
        return add_port_to_grpc_server(server, address.replace("[::]", "127.0.0.1"))

    vars(sys.modules["ray.serve._private.replica"])["add_port_to_grpc_server"] = add_on_loopback


def require_loopback(request: Request) -> None:
    """Raise HTTPException 403 for callers on other machines, and for foreign pages in a browser on this machine."""
    path = request.url.path
    if not is_loopback(request.client.host if request.client else ""):
        raise HTTPException(403, f"{path} answers callers on the server's own machine only.")
    # A page can make its own name resolve to this machine (DNS rebinding), and could then read the answer.
    asked = request.url.hostname or ""
    if not (asked == "localhost" or is_address(asked)):
        raise HTTPException(403, f"{path} answers to localhost or an IP address, not to {asked}.")
