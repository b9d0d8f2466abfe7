"""API keys: with a keys file, model requests need `Authorization: Bearer KEY` or `x-api-key: KEY`.

Health, metrics, versions and the fleet need no key: probes, monitoring and operators read them without a model.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from peagle.api.clients.keys_file import Clients, digest_of, parse_clients, read_bytes
from peagle.api.clients.request_charge import Charge
from peagle.api.ledger import Ledger
from peagle.api.reply import INVALID_REQUEST, ErrorReply
from peagle.errors import ConfigError
from peagle.router.fairness.client_terms import Client

logger = logging.getLogger(__name__)

GUARDED = (
    *("/v1/", "/v2/", "/invocations", "/tokenize", "/detokenize"),
    *("/rerank", "/score", "/pooling", "/classify", "/console/status"),
)
# Added and removed keys take effect after this time; a mounted Secret itself takes up to a minute to update.
REREAD_S = 10.0


class Keys:
    """The keys in a file, which is read again while the server runs.

    If the file becomes invalid, the last valid version stays in force. Before the first valid one, all are refused.
    """

    def __init__(self, path: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now_s = path, now_s
        self._content = b""
        self._clients: Clients = {}
        self._read_at_s: float | None = None
        self._said = ""

    async def owner(self, key: str) -> Client | None:
        """Return the client that this key belongs to, if any."""
        await self._refresh()
        # Timing this lookup reveals information about digests, not about keys.
        return self._clients.get(digest_of(key.encode("latin-1")))  # the original bytes: headers are Latin-1

    async def _refresh(self) -> None:
        now_s, first = self._now_s(), self._read_at_s is None
        if self._read_at_s is not None and now_s - self._read_at_s < REREAD_S:
            return
        self._read_at_s = now_s
        if first:
            self._read()  # no request can be admitted before the first read
        else:
            await asyncio.to_thread(self._read)  # a file of thousands of keys takes a second

    def _read(self) -> None:
        try:
            content = read_bytes(self._path)
            if content == self._content:
                return
            self._clients = parse_clients(content, str(self._path))
            self._content, said = content, ""
        except ConfigError as error:
            said = error.problems[0].message
            if said != self._said:
                logger.error("The API keys stay unchanged: %s", said)
        self._said = said


def check_keys(path: Path) -> None:
    """Check a keys file before a server starts. Raises ConfigError if it is invalid or has no key."""
    parse_clients(read_bytes(path), str(path))


def _is_guarded(scope: Scope) -> bool:
    """Whether the path needs a key, also below a route prefix, which routing removes."""
    path: str = scope["path"]
    return path.startswith(GUARDED) or path.removeprefix(scope.get("root_path", "").rstrip("/")).startswith(GUARDED)


def _key_in(headers: Headers) -> str:
    """Return the request's key in OpenAI's or Anthropic's header, empty if there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip()


class KeyCheck:
    """Answers 401 to model requests without a known key; adds the key's remaining limits to other answers."""

    def __init__(self, app: ASGIApp, keys_file: str) -> None:
        self._app = app
        self._keys = Keys(Path(keys_file))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not _is_guarded(scope):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        key = _key_in(headers)
        client = await self._keys.owner(key) if key else None
        if client is not None:
            await self._serve(client, scope, receive, send)
            return
        if key or headers.get("authorization", "").partition(" ")[2]:
            message = "The API key is not valid for this server."
        else:
            message = "This server requires an API key: send Authorization: Bearer KEY."
        reply = ErrorReply(
            401, message, INVALID_REQUEST, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
        )
        await reply.response()(scope, receive, send)

    async def _serve(self, client: Client, scope: Scope, receive: Receive, send: Send) -> None:
        ledger: Ledger = scope["app"].state.ledger

        async def tell(message: Message) -> None:
            if message["type"] == "http.response.start" and client.limits:
                MutableHeaders(scope=message).update(ledger.limits.headers(client))
            await send(message)

        scope.setdefault("state", {})["client"] = client
        try:
            await self._app(scope, receive, tell)
        finally:
            charge: Charge | None = scope["state"].get("charge")
            if charge is not None:
                ledger.limits.end(charge)
                if charge.has_place:
                    ledger.places[charge.model].give_back(charge.client.name)
                ledger.lengths.saw(charge)
                if scope["state"].get("counted"):
                    ledger.metrics.used(charge.client.name, charge.model, charge.used)
