"""Routes that only callers on the server's own machine may use."""

import ipaddress

from starlette.exceptions import HTTPException
from starlette.requests import Request


def require_loopback(request: Request) -> None:
    """Raises HTTPException 403 for a caller from elsewhere."""
    if not is_loopback(request.client.host if request.client else ""):
        raise HTTPException(403, f"{request.url.path} answers callers on the server's own machine only.")


def is_loopback(host: str) -> bool:
    """Whether the IP address `host` is the machine's own, by which no other can reach it; a name is none."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
