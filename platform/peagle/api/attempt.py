"""How the tries at one client's request are told apart, and known to belong together, by their engine's request id."""

from typing import Any


def attempt_id(request_id: str, attempt: int) -> str:
    """The engine's name for the `attempt`-th try, from 0, at the client's request `request_id`."""
    return f"{request_id}-{attempt}"


def client_request(body: Any) -> tuple[str, bool]:
    """The client's request that a body is a try at, empty where the body has no id; and whether it is not the first."""
    request_id, _, attempt = (getattr(body, "request_id", None) or "").rpartition("-")
    return request_id, bool(request_id) and attempt != "0"
