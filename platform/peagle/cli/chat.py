"""`peagle chat`: a conversation in the terminal over the OpenAI API, with the speed of each answer.

Answers go to stdout and everything else to stderr, so that a pipe receives only answers.
"""

import io
import json
import signal
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

from peagle.cli.depth_words import depth_line
from peagle.client.running_server import choose_model, key_headers, nothing_answers
from peagle.client.server_url import base_url, heeds_proxies
from peagle.errors import PeagleError, RequestError

HELP = "Ctrl-C stops an answer, /reset forgets the conversation, /exit or Ctrl-D leaves."
CODE_HINT = "This small model was trained on Python source and continues it. Try: def read_json(path):"

Message = dict[str, str]
Rows = list[dict[str, Any]]
"""The replicas of a model in `GET /fleet`."""
DraftCounts = tuple[int, int]
"""Number of drafts verified, and of draft tokens accepted."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One event of a streamed answer. `thought` is reasoning text, which some models send before their answer."""

    text: str = ""
    thought: str = ""
    finish_reason: str | None = None
    completion_tokens: int | None = None
    acceptance_length: float | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished or stopped answer. `acceptance_length` is None if nothing was drafted.

    It is this answer's own if the server reports it with the answer. Otherwise it is `server_wide`: counted over all
    requests that the server verified meanwhile. `depth` describes K, its reason and the speedup, if the server reports
    them.
    """

    text: str
    ttft_s: float
    total_s: float
    completion_tokens: int | None
    finish_reason: str | None
    acceptance_length: float | None
    server_wide: bool = False
    depth: str | None = None

    def summary(self) -> str:
        """Return a line of figures and a line about K. Speed excludes the first token, whose time is the TTFT."""
        if self.completion_tokens is None:
            return f"stopped after {self.total_s:.1f} s"
        parts = [f"{self.completion_tokens} tokens"]
        decode_s = self.total_s - self.ttft_s
        if self.completion_tokens > 1 and decode_s > 0:
            parts.append(f"{(self.completion_tokens - 1) / decode_s:.0f} tokens/s")
        parts.append(f"first token after {self.ttft_s * 1000:.0f} ms")
        if self.acceptance_length is not None:
            scope = " (of all requests at that time)" if self.server_wide else ""
            parts.append(f"acceptance length {self.acceptance_length:.2f}{scope}")
        if self.finish_reason == "length":
            parts.append("cut at the length limit")
        return "\n".join([" · ".join(parts), *([self.depth] if self.depth else [])])


class ChatClient:
    """One model of one server. Closing a stream early aborts the request on the server.

    Raises StartupError if no server answers at `url`, or it does not serve the model.
    """

    def __init__(self, url: str, model: str | None, options: dict[str, Any]) -> None:
        self.url = base_url(url)
        # An answer may take long to begin, but a running server accepts the connection at once.
        timeout = httpx.Timeout(None, connect=5.0)
        heeds = heeds_proxies(self.url)
        self._http = httpx.Client(base_url=self.url, headers=key_headers(), timeout=timeout, trust_env=heeds)
        self._options = options
        self.model = self._choose(model)

    def _choose(self, wanted: str | None) -> str:
        try:
            answer = self._http.get("/v1/models")
        except httpx.TransportError as error:
            raise nothing_answers(self.url, error) from None
        return choose_model(answer, self.url, wanted)

    def stream(self, messages: list[Message]) -> Generator[Piece, None, None]:
        """Yield an answer as it arrives.

        Raises:
            RequestError: The server refused the request; the message is the server's.
            PeagleError: The connection broke during the answer.
        """
        body = {
            "model": self.model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._options,
        }
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                    raise RequestError(_error_text(response.text, f"the server answered {response.status_code}"))
                yield from map(parse_event, _data_lines(response))
        except httpx.TransportError as error:
            raise PeagleError(f"the answer broke off ({error or type(error).__name__})") from None

    def ask(self, messages: list[Message]) -> Answer:
        """Print an answer as it arrives and return it; Ctrl-C stops it early, also on the server."""
        before = self._replicas()
        start = time.perf_counter()
        first: float | None = None
        text, tokens, finish, acceptance = "", None, None, None
        stream = self.stream(messages)
        try:
            for piece in stream:
                if first is None and (piece.text or piece.thought):
                    first = time.perf_counter()
                if piece.thought:
                    print(piece.thought, end="", flush=True, file=sys.stderr)
                if piece.text:
                    print(piece.text, end="", flush=True)
                text += piece.text
                tokens = piece.completion_tokens or tokens
                finish = piece.finish_reason or finish
                acceptance = piece.acceptance_length or acceptance
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            tokens = None
        except PeagleError:
            if text:
                print(flush=True)
            raise
        finally:
            stream.close()
        end = time.perf_counter()
        times = (first or end) - start, end - start
        if tokens is None:
            return Answer(text, *times, tokens, finish, acceptance)
        after = self._replicas()
        depth = depth_line(busiest(before, after) or {})
        if acceptance is not None:
            return Answer(text, *times, tokens, finish, acceptance, depth=depth)
        wide = acceptance_between(draft_counts(before), draft_counts(after))
        return Answer(text, *times, tokens, finish, wide, server_wide=True, depth=depth)

    def _replicas(self) -> Rows:
        """Return the server's rows about the model's replicas; empty if it does not report them."""
        try:
            models = self._http.get("/fleet", timeout=10.0).raise_for_status().json()["models"]
            found: Rows = next(model["replicas"] for model in models if model["name"] == self.model)
            return found
        except (httpx.HTTPError, ValueError, KeyError, TypeError, StopIteration):
            return []


def parse_event(data: str) -> Piece:
    """Read the JSON of one server-sent event.

    Raises RequestError if the event is an error object, which reports a failure after the stream began.
    """
    event = json.loads(data)
    if "error" in event:
        raise RequestError(_error_text(data, "the server ended the answer"))
    usage = event.get("usage") or {}
    speculative = (event.get("metrics") or {}).get("speculative_decoding") or {}
    choice = (event.get("choices") or [{}])[0]
    delta = choice.get("delta") or {}
    return Piece(
        text=delta.get("content") or "",
        thought=delta.get("reasoning_content") or delta.get("reasoning") or "",
        finish_reason=choice.get("finish_reason"),
        completion_tokens=usage.get("completion_tokens"),
        acceptance_length=speculative.get("mean_acceptance_length") if speculative.get("num_spec_steps") else None,
    )


def draft_counts(replicas: Rows) -> DraftCounts | None:
    """Sum the replicas' verified drafts and accepted tokens; None if a replica does not report them."""
    if not replicas or any(replica.get("drafts") is None for replica in replicas):
        return None
    return sum(replica["drafts"] for replica in replicas), sum(replica["accepted"] for replica in replicas)


def busiest(before: Rows, after: Rows) -> dict[str, Any] | None:
    """Return the replica that generated most between two reads.

    On a server without other clients, it is the one that answered.
    """
    then = {replica["id"]: replica["generation_tokens"] for replica in before}
    return max(after, key=lambda each: each["generation_tokens"] - then.get(each["id"], 0), default=None)


def acceptance_between(before: DraftCounts | None, after: DraftCounts | None) -> float | None:
    """Return the tokens per verification between two counts; None if either is unknown or nothing was drafted."""
    if before is None or after is None or after[0] == before[0]:
        return None
    return 1.0 + (after[1] - before[1]) / (after[0] - before[0])


def run_chat(url: str, model: str | None, *, max_tokens: int, temperature: float | None, system: str | None) -> int:
    """Chat until the input ends. Returns 1 if the input was a pipe and an answer failed, else 0."""
    # A shell starts background commands with Ctrl-C ignored; a chat always handles it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options: dict[str, Any] = {"max_tokens": max_tokens}
    if temperature is not None:
        options["temperature"] = temperature
    client = ChatClient(url, model, options)
    interactive = sys.stdin.isatty()
    _note(f"Talking to {client.model} at {client.url}. {HELP}")
    if "embedded" in client.model:
        _note(CODE_HINT)
    opening: list[Message] = [{"role": "system", "content": system}] if system else []
    messages, failed = list(opening), False
    for line in input_lines(interactive):
        match line.strip():
            case "":
                continue
            case "/exit":
                break
            case "/reset":
                messages = list(opening)
                _note("The conversation was reset.")
                continue
        messages.append({"role": "user", "content": line})
        try:
            answer = client.ask(messages)
        except PeagleError as error:
            # The turn is dropped, so that one refused message does not make all later ones fail.
            messages.pop()
            failed = True
            _note(f"{error} (this message was dropped; /reset clears the conversation)")
            continue
        print(flush=True)
        _note(answer.summary())
        messages.append({"role": "assistant", "content": answer.text})
    return int(failed and not interactive)


def input_lines(interactive: bool) -> Iterator[str]:
    """Yield lines typed or piped, until the input ends. Ctrl-C at the prompt clears the line."""
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")  # text that is not UTF-8 could not be sent
    if not interactive:
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    import readline  # noqa: F401  (importing it adds history and line editing to input())

    while True:
        try:
            yield input("\n> ")
        except EOFError:
            print(file=sys.stderr)
            return
        except KeyboardInterrupt:
            print(file=sys.stderr)


def _data_lines(response: httpx.Response) -> Iterator[str]:
    for line in response.iter_lines():
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or not data:
            continue
        if data == "[DONE]":
            return
        yield data


def _error_text(body: str, fallback: str) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return fallback


def _note(text: str) -> None:
    if sys.stderr.isatty():
        text = f"\x1b[2m{text}\x1b[0m"
    print(text, file=sys.stderr, flush=True)
