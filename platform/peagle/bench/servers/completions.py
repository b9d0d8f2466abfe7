"""A low-overhead client of a served model: it records arrival times, and parses answers after the request."""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp

from peagle.bench.core.closed_loop import Arrivals
from peagle.errors import StartupError
from peagle.prompt_file import Prompt

TIMEOUT_S = 300.0
"""Longest wait for the next bytes of an answer, in seconds."""

KEEP_ALIVE_S = 1.0
"""Longest idle time of a connection, in seconds: less than any server's, or a request could meet a closing one."""

Chunk = tuple[float, bytes]
"""Seconds from the request's start, and the bytes that arrived."""


@dataclass(frozen=True, slots=True)
class Reply(Arrivals):
    """One streamed completion as seen by its client; `tokens` is the server's count."""

    text: str
    tokens: int
    arrivals_s: tuple[float, ...]

    @property
    def token_count(self) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Completions:
    """Client for greedy completions of a fixed length, ignoring end-of-text tokens, from the server at `url`."""

    http: aiohttp.ClientSession
    url: str
    model: str
    output_tokens: int

    async def ask(self, prompt: Prompt, cache_salt: str) -> Reply:
        """Stream one completion, or a chat completion for a chat.

        The server's prefix cache is shared only among prompts with the same `cache_salt`.

        Raises StartupError if the server answers with an error, ends early, or is down.
        """
        body = {
            "model": self.model,
            **_asked(prompt),
            "max_tokens": self.output_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_salt": cache_salt,
        }
        chunks: list[Chunk] = []
        start = time.perf_counter()
        try:
            async with self.http.post(f"{self.url}/v1/{_route(prompt)}", json=body) as answer:
                async for data in answer.content.iter_any():
                    chunks.append((time.perf_counter() - start, data))
                status = answer.status
        except (aiohttp.ClientError, TimeoutError) as error:
            raise _failed(self.url, repr(error)) from error
        if status != 200:
            raise _failed(self.url, f"{status}: {_text(chunks)[:200]}")
        reply = read_reply(chunks)
        if reply is None or reply.tokens != self.output_tokens:
            raise _failed(self.url, f"it ended early: {_text(chunks)[-200:]}")
        return reply

    async def count_tokens(self, prompt: Prompt) -> tuple[int, int]:
        """Return the tokens of `prompt` and the context length. Raises StartupError if they are not reported."""
        counted = await self._call("POST", "tokenize", {"model": self.model, **_asked(prompt)})
        try:
            return int(counted["count"]), int(counted["max_model_len"])
        except (ValueError, KeyError) as error:
            raise _failed(self.url, repr(error)) from error

    async def scrape(self) -> None:
        """Read `/metrics`, as Prometheus does. Raises StartupError if it is missing."""
        await self._call("GET", "metrics")

    async def count(self, counting: bool) -> None:
        """Start or pause counting on a peagle server. Raises StartupError if a process was not reached."""
        told = await self._call("PUT", "fleet/metrics", {"counting": counting})
        if not told["replicas"].get(self.model):
            raise _failed(self.url, f"no replica was told whether to count: {told}")

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the answer; it is JSON for calls with a body."""
        try:
            async with self.http.request(method, f"{self.url}/{path}", json=body) as answer:
                answer.raise_for_status()
                return await answer.json() if body is not None else await answer.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _failed(self.url, repr(error)) from error


def client_session(headers: Mapping[str, str] | None = None, *, trust_env: bool = False) -> aiohttp.ClientSession:
    """Return a session without a connection limit; close it. `trust_env` uses the environment's proxies."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=TIMEOUT_S)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=timeout,
        headers=headers,
        trust_env=trust_env,
    )


def read_reply(chunks: Sequence[Chunk]) -> Reply | None:
    """Parse the answer from the bytes of an event stream; None if it is incomplete.

    Bytes that arrive together are one output, as for a reader. Events without content do not count.
    """
    text: list[str] = []
    arrivals: list[float] = []
    tokens, whole, rest = 0, False, b""
    for at_s, data in chunks:
        *events, rest = (rest + data).split(b"\n\n")
        speaks = False
        for event in events:
            content = event.removeprefix(b"data: ")
            whole = whole or content == b"[DONE]"
            piece: dict[str, Any] = json.loads(content) if content.startswith(b"{") else {}
            for choice in piece.get("choices", ()):
                if (said := _said(choice)) is not None:
                    text.append(said)
                    speaks = True
            tokens = (piece.get("usage") or {}).get("completion_tokens", tokens)
        if speaks:
            arrivals.append(at_s)
    return Reply("".join(text), tokens, tuple(arrivals)) if whole and arrivals else None


def _asked(prompt: Prompt) -> dict[str, Any]:
    return {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}


def _route(prompt: Prompt) -> str:
    return "completions" if isinstance(prompt, str) else "chat/completions"


def _said(choice: Mapping[str, Any]) -> str | None:
    """Return the text of a choice; None if a chat's choice has only a role or a finish reason."""
    delta = choice.get("delta")
    if delta is None:
        return str(choice["text"])
    said: str | None = delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content") or None
    return said


def _text(chunks: Sequence[Chunk]) -> str:
    return b"".join(data for _, data in chunks).decode(errors="replace").strip()


def _failed(url: str, why: str) -> StartupError:
    return StartupError(f"the server at {url} failed under load ({why})", "See its log.")
