"""API keys: with a file of them, whoever asks a model sends one, as `Authorization: Bearer KEY` or `x-api-key: KEY`.

Health, metrics, versions and the fleet stay open: probes, monitoring and operators ask for these, and no model answers.
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
# A key that is added or withdrawn counts after this time; a mounted secret itself takes up to a minute to change.
REREAD_S = 10.0


class Keys:
    """The keys in a file, which is read again while the server runs.

    A file that has become wrong leaves the last good one in force. Until there was one, nobody is admitted.
    """

    def __init__(self, path: Path, now_s: Callable[[], float] = time.monotonic) -> None:
        self._path, self._now_s = path, now_s
        self._content = b""
        self._clients: Clients = {}
        self._read_at_s: float | None = None
        self._said = ""

    async def owner(self, key: str) -> Client | None:
        """The client whose key this is, if it is one's."""
        await self._refresh()
        # Whoever times this lookup learns of digests, and nothing of keys.
        return self._clients.get(digest_of(key.encode("latin-1")))  # the bytes as they came: headers are Latin-1

    async def _refresh(self) -> None:
        now_s, first = self._now_s(), self._read_at_s is None
        if self._read_at_s is not None and now_s - self._read_at_s < REREAD_S:
            return
        self._read_at_s = now_s
        if first:
            self._read()  # nobody can be admitted before
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
                logger.error("The API keys stay as they were: %s", said)
        self._said = said


def check_keys(path: Path) -> None:
    """Check a file of keys before a server starts. Raises ConfigError where it is wrong, or admits nobody."""
    parse_clients(read_bytes(path), str(path))


def _is_guarded(scope: Scope) -> bool:
    """Below a route prefix, too, which routing takes off the path."""
    path: str = scope["path"]
    return path.startswith(GUARDED) or path.removeprefix(scope.get("root_path", "").rstrip("/")).startswith(GUARDED)


def _key_in(headers: Headers) -> str:
    """The key that a request was sent with, empty if none: as OpenAI's clients send it, or as Anthropic's do."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key", "").strip()


class KeyCheck:
    """Answers 401 for a request to a model without a known key; says in other answers what the key's limits leave."""

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
            message = "The API key is not known here."
        else:
            message = "This server asks for an API key: send Authorization: Bearer KEY."
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
