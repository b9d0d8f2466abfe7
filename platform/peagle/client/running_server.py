"""A server as commands meet it: its key, its models, and what is said where it does not answer as it should."""

import os

import httpx

from peagle.config.deployment import POOLING
from peagle.errors import StartupError

# The key for a server that asks for one; on a command line every user of the machine would see it.
API_KEY = "PEAGLE_API_KEY"


def key_headers() -> httpx.Headers:
    """The headers of each request: the key from the environment, if there is one."""
    key = os.environ.get(API_KEY)
    # What httpx is given as a plain mapping it takes for ASCII.
    return httpx.Headers({"Authorization": f"Bearer {key}"} if key else {}, encoding="utf-8")


def choose_model(answer: httpx.Response, url: str, wanted: str | None) -> str:
    """Return `wanted`, or the first model that `GET /v1/models` names and that generates text.

    Raises StartupError where it names no such model, asks for a key, or is no answer of an OpenAI-compatible server.
    """
    if answer.status_code == httpx.codes.UNAUTHORIZED:
        if API_KEY in os.environ:
            raise StartupError(f"{url} does not know the key in {API_KEY}", "Set it to one of the server's keys.")
        raise StartupError(f"{url} asks for an API key", f"Set {API_KEY} to one of the server's keys.")
    try:
        tasks = {str(entry["id"]): entry.get("task") for entry in answer.raise_for_status().json()["data"]}
    except (httpx.HTTPStatusError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StartupError(f"{url} is no OpenAI-compatible server ({error})", "Name one with --url.") from None
    if not tasks:
        raise StartupError(f"{url} serves no model", "Wait until it is ready, or see its log.")
    if wanted is not None and wanted not in tasks:
        raise StartupError(f"{url} does not serve {wanted}", f"Served there: {', '.join(tasks)}.")
    found = wanted or next((name for name, task in tasks.items() if task != POOLING), None)
    if found is None:
        raise StartupError(f"{url} serves no model that generates text", f"Served there: {', '.join(tasks)}.")
    return found


def nothing_answers(url: str, error: Exception) -> StartupError:
    return StartupError(
        f"no server answers at {url} ({error or type(error).__name__})",
        "Start one with: peagle serve deployments/embedded.yaml",
    )
