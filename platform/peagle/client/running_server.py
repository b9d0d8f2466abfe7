"""Access to a server for commands: its key, its models, and errors for unexpected answers."""

import os

import httpx

from peagle.config.deployment import POOLING
from peagle.errors import StartupError

# The server's API key; on a command line, every user of the machine would see it.
API_KEY = "PEAGLE_API_KEY"


def key_headers() -> httpx.Headers:
    """Return the headers of each request: the key from the environment, if set."""
    key = os.environ.get(API_KEY)
    # httpx encodes a plain mapping as ASCII.
    return httpx.Headers({"Authorization": f"Bearer {key}"} if key else {}, encoding="utf-8")


def choose_model(answer: httpx.Response, url: str, wanted: str | None) -> str:
    """Return `wanted`, or the first model in `GET /v1/models` that generates text.

    Raises StartupError if there is no such model, a key is required, or the server is not OpenAI-compatible.
    """
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        if API_KEY in os.environ:
            raise StartupError(f"{url} refuses the key in {API_KEY}", "Set it to one of the server's keys.")
        raise StartupError(f"{url} requires an API key", f"Set {API_KEY} to one of the server's keys.")
    try:
        tasks = {str(entry["id"]): entry.get("task") for entry in answer.raise_for_status().json()["data"]}
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartupError(f"{url} is not an OpenAI-compatible server ({error})", "Name one with --url.") from None
    if not tasks:
        raise StartupError(f"{url} serves no model", "Wait until it is ready, or read its log.")
    if wanted is not None and wanted not in tasks:
        raise StartupError(f"{url} does not serve {wanted}", f"Available models: {', '.join(tasks)}.")
    found = wanted or next((name for name, task in tasks.items() if task != POOLING), None)
    if found is None:
        raise StartupError(f"{url} serves no model that generates text", f"Available models: {', '.join(tasks)}.")
    return found


def nothing_answers(url: str, error: Exception) -> StartupError:
    return StartupError(
        f"no server answers at {url} ({error or type(error).__name__})",
        "Start one with: peagle serve deployments/embedded.yaml",
    )
