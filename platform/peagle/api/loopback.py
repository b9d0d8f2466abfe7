"""Routes that only callers on the server's own machine may use."""

from starlette.exceptions import HTTPException
from starlette.requests import Request

from peagle.host.addresses import is_address, is_loopback


def require_loopback(request: Request) -> None:
    """Raises HTTPException 403 for a caller from elsewhere, and for a page in a browser here that is."""
    path = request.url.path
    if not is_loopback(request.client.host if request.client else ""):
        raise HTTPException(403, f"{path} answers callers on the server's own machine only.")
    # A page can have its own name resolve to this machine (DNS rebinding), and may then read what it is answered.
    asked = request.url.hostname or ""
    if not (asked == "localhost" or is_address(asked)):
        raise HTTPException(403, f"{path} answers to localhost or an IP address, not to {asked}.")
