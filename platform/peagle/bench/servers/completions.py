"""A client of a served model that costs little: it notes when bytes came, and reads them once the request has ended."""

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
"""Longest wait for the next bytes of an answer."""

KEEP_ALIVE_S = 1.0
"""How long a connection may idle: less than at any server, or a request would be sent as the server closes it."""

Chunk = tuple[float, bytes]
"""Seconds from the request's start, and what came then."""


@dataclass(frozen=True, slots=True)
class Reply(Arrivals):
    """One streamed completion as its client saw it; `tokens` are those that the server says it made."""

    text: str
    tokens: int
    arrivals_s: tuple[float, ...]

    @property
    def token_count(self) -> int:
        return self.tokens


@dataclass(frozen=True, slots=True)
class Completions:
    """Greedy completions of a fixed length, end-of-text tokens included, from the server at `url`."""

    http: aiohttp.ClientSession
    url: str
    model: str
    output_tokens: int

    async def ask(self, prompt: Prompt, cache_salt: str) -> Reply:
        """Stream one, a chat's as a chat completion.

        Prompts are looked up in the server's cache among those of the same `cache_salt` only.

        Raises StartupError where the server answers with an error, ends early, or is gone.
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
        """Tokens of `prompt`, and of prompt and answer at most. Raises StartupError where the server does not say."""
        counted = await self._call("POST", "tokenize", {"model": self.model, **_asked(prompt)})
        try:
            return int(counted["count"]), int(counted["max_model_len"])
        except (ValueError, KeyError) as error:
            raise _failed(self.url, repr(error)) from error

    async def scrape(self) -> None:
        """Read `/metrics`, as Prometheus does. Raises StartupError where there are none."""
        await self._call("GET", "metrics")

    async def count(self, counting: bool) -> None:
        """Have a peagle server count from now on, or not. Raises StartupError where a process has not heard of it."""
        told = await self._call("PUT", "fleet/metrics", {"counting": counting})
        if not told["replicas"].get(self.model):
            raise _failed(self.url, f"no replica was told whether to count: {told}")

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The answer, which is JSON to what has a body."""
        try:
            async with self.http.request(method, f"{self.url}/{path}", json=body) as answer:
                answer.raise_for_status()
                return await answer.json() if body is not None else await answer.read()
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise _failed(self.url, repr(error)) from error


def client_session(headers: Mapping[str, str] | None = None, *, trust_env: bool = False) -> aiohttp.ClientSession:
    """Connections to the servers, as many as are needed; close it. `trust_env` heeds the environment's proxies."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=TIMEOUT_S)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=timeout,
        headers=headers,
        trust_env=trust_env,
    )


def read_reply(chunks: Sequence[Chunk]) -> Reply | None:
    """The answer in the bytes of a stream of events; None where it is not whole.

    What arrives at once is one output, as it is for a reader. Events that carry no part of the answer are none.
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
    """What a part of an answer says; None of a chat's that says only who speaks, or why it ends."""
    delta = choice.get("delta")
    if delta is None:
        return str(choice["text"])
    said: str | None = delta.get("content") or delta.get("reasoning") or delta.get("reasoning_content") or None
    return said


def _text(chunks: Sequence[Chunk]) -> str:
    return b"".join(data for _, data in chunks).decode(errors="replace").strip()


def _failed(url: str, why: str) -> StartupError:
    return StartupError(f"the server at {url} failed under load ({why})", "Its log says why.")
