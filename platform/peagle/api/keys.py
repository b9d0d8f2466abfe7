"""API keys: with a file of them, whoever asks a model has to send one as `Authorization: Bearer KEY`.

Health, metrics, versions and the fleet stay open: probes, monitoring and operators ask for these, and no model answers.
"""

import codecs
import hmac
import logging
import time
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from peagle.api.reply import INVALID_REQUEST, ErrorReply
from peagle.errors import ConfigError

logger = logging.getLogger(__name__)

GUARDED = ("/v1/", "/invocations", "/tokenize", "/detokenize")
# A key that is added or withdrawn counts after this time; a mounted secret itself takes up to a minute to change.
REREAD_S = 10.0


class Keys:
    """The keys in a file, one on each line; lines that are empty or begin with # are none.

    A file that cannot be read admits nobody.
    """

    def __init__(self, path: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now_s = path, now_s
        self._keys: tuple[bytes, ...] = ()
        self._read_at_s: float | None = None

    def admit(self, key: str) -> bool:
        """Whether `key` is one of them; takes the same time wherever it differs."""
        given = key.encode("latin-1")  # the bytes as they came: a header is read as Latin-1
        return sum(hmac.compare_digest(given, known) for known in self._current()) > 0

    def _current(self) -> tuple[bytes, ...]:
        now_s = self._now_s()
        if self._read_at_s is None or now_s - self._read_at_s >= REREAD_S:
            self._read_at_s = now_s
            try:
                self._keys = read_keys(self._path)
            except OSError as error:
                logger.error("No API key is accepted: %s", error)
                self._keys = ()
        return self._keys


def read_keys(path: Path) -> tuple[bytes, ...]:
    """The keys in a file, which may begin with a byte order mark; raises OSError where it cannot be read."""
    lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).splitlines()
    return tuple(key for line in lines if (key := line.strip()) and not key.startswith(b"#"))


def check_keys(path: Path) -> None:
    """Check a file of keys before a server starts with it.

    Raises:
        ConfigError: It cannot be read, or admits nobody.
    """
    try:
        keys = read_keys(path)
    except OSError as error:
        raise ConfigError("--keys-file", str(path), f"it cannot be read: {error.strerror}", "Name another.") from None
    if not keys:
        raise ConfigError("--keys-file", str(path), "it holds no key, so nobody could ask", "Write one on each line.")


def _is_guarded(scope: Scope) -> bool:
    """Below a route prefix, too, which routing takes off the path."""
    path: str = scope["path"]
    return path.startswith(GUARDED) or path.removeprefix(scope.get("root_path", "").rstrip("/")).startswith(GUARDED)


class KeyCheck:
    """Answers 401 for a request to a model without a known key."""

    def __init__(self, app: ASGIApp, keys_file: str) -> None:
        self._app = app
        self._keys = Keys(Path(keys_file))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_guarded(scope):
            await self._app(scope, receive, send)
            return
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._keys.admit(key.strip()):
            await self._app(scope, receive, send)
            return
        if key:
            message = "The API key is not known here."
        else:
            message = "This server asks for an API key: send Authorization: Bearer KEY."
        reply = ErrorReply(
            401, message, INVALID_REQUEST, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
        )
        await reply.response()(scope, receive, send)
