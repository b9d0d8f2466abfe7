"""Asks the Router, which decides for all ingress processes, whether a request is within its client's limits.

One call is open at a time, and includes everything since the previous one. Without an answer from the Router, each
process continues with its share of the last known limits.
"""

import asyncio
import logging
import math
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, replace

from peagle.api.clients.request_charge import Charge, Usage
from peagle.errors import LimitError
from peagle.router.fairness.client_terms import Client, Limits
from peagle.router.fairness.limit_book import Ask, Held, Levels, LimitAnswer, LimitBook, LimitReport, Refusal, Verdict
from peagle.router.fairness.limit_headers import limit_headers

logger = logging.getLogger(__name__)

PERIOD_S = 0.25
"""Interval in seconds between reports of ended requests while no new request arrives."""
PATIENCE_S = 5.0
"""Longest wait for the Router's answer, in seconds: Serve's lookup of the Router, or a busy machine, may take some.
Each process waits for a lost Router once."""
AGAIN_S = 5.0
"""Time after which to retry a request that exceeds this process's share, but not the limit, in seconds."""
LEVELS_KEPT = 10_000
"""Most clients whose levels are remembered."""

Exchange = Callable[[LimitReport], Awaitable[LimitAnswer]]


@dataclass(slots=True)
class _Heard:
    """A client's levels at a time, and the tokens returned since then."""

    levels: Levels
    at_s: float
    returned: int


class ClientLimits:
    """An ingress process's part of the accounting. Everything runs on one event loop and its clock."""

    def __init__(self) -> None:
        self._name = uuid.uuid4().hex
        self._asks: list[tuple[Charge, asyncio.Future[Verdict]]] = []
        self._open: Counter[str] = Counter()
        self._waiting: Counter[str] = Counter()
        self._returned: Counter[str] = Counter()
        self._has_news = False
        # What the Router has to hear of what was decided without it.
        self._owed_requests: Counter[str] = Counter()
        self._owed_tokens: Counter[str] = Counter()
        self._heard: dict[str, _Heard] = {}
        self._ingresses = 1
        self._alone: LimitBook | None = None
        self._probe: asyncio.Task[LimitAnswer | None] | None = None
        self._woken = asyncio.Event()
        self._telling: asyncio.Task[None] | None = None

    async def admit(self, charge: Charge, exchange: Exchange) -> None:
        """Wait for the Router's decision through `exchange`; the caller of an admitted request calls `end` at its end.

        Raises LimitError if a request with the expected `charge` is over a limit.
        """
        if not charge.client.limits:
            return
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Verdict] = loop.create_future()
        self._asks.append((charge, future))
        self._woken.set()
        if self._telling is None:
            # In a context of its own: Serve would cancel what is asked in a request's when that request ends.
            self._telling = loop.create_task(self._keep_telling(exchange), name="limits", context=Context())
        try:
            verdict = await future
        except asyncio.CancelledError:
            self._left(charge)  # a verdict may have arrived in the same moment
            raise
        if verdict.refusal is not None:
            raise _refused(charge.client, verdict.refusal)

    def begin(self, charge: Charge) -> None:
        """Record that a request's answer has begun."""
        if charge.is_open and charge.is_waiting:
            self._waiting[charge.client.name] -= charge.tokens
        charge.is_waiting = False

    def end(self, charge: Charge) -> None:
        """Record that a request has ended, and its usage. A second call has no effect."""
        if not charge.is_open:
            return
        self.begin(charge)
        charge.is_open = False
        name = charge.client.name
        self._open[name] -= 1
        self._has_news = True
        if charge.used is not None:
            returned = charge.tokens - (charge.used.prompt + charge.used.output)
            self._returned[name] += returned
            if (heard := self._heard.get(name)) is not None:
                heard.returned += returned
        limits = charge.client.limits
        if limits.requests_at_once is not None or limits.tokens_per_minute is not None:
            self._woken.set()  # the client may be about to send its next, to whichever process

    def headers(self, client: Client) -> dict[str, str]:
        """Return the limit headers of an answer to `client`."""
        now_s = asyncio.get_running_loop().time()
        heard = self._heard.get(client.name)
        levels, age_s = (Levels(), 0.0) if heard is None else (heard.levels, now_s - heard.at_s)
        return limit_headers(client.limits, levels, age_s)

    async def _keep_telling(self, exchange: Exchange) -> None:
        while True:
            try:
                async with asyncio.timeout(PERIOD_S):
                    await self._woken.wait()
            except TimeoutError:
                pass
            self._woken.clear()
            self._open, self._waiting = +self._open, +self._waiting
            owes = self._owed_requests or self._owed_tokens
            if self._asks or self._open or self._has_news or owes or self._alone is not None:
                self._has_news = False
                asked, self._asks = self._asks, []
                try:
                    await self._tell(asked, exchange)
                except Exception as error:  # waiting requests must not wait for ever
                    logger.exception("Limits could not be looked up.")
                    for _, future in asked:
                        if not future.done():
                            future.set_exception(error)

    async def _tell(self, asked: list[tuple[Charge, asyncio.Future[Verdict]]], exchange: Exchange) -> None:
        now_s = asyncio.get_running_loop().time
        held = {name: Held(count, self._waiting[name]) for name, count in self._open.items()}
        returned, self._returned = self._returned, Counter()
        report = LimitReport(self._name, held, dict(returned), tuple(self._ask(charge, now_s()) for charge, _ in asked))
        answer, share = None, 1
        if self._alone is None:
            answer = await self._of_router(report, exchange)
        elif self._probe is None or self._probe.done():
            # Nobody waits for a Router that was lost: it is asked beside.
            self._probe = asyncio.create_task(self._of_router(replace(report, returned={}, asks=()), exchange))
        if answer is None:
            self._owed_tokens.update(returned)  # those of the probe, which begins later, too
            share, answer = self._ingresses, self._decide_alone(report, now_s())
        for (charge, future), verdict in zip(asked, answer.verdicts, strict=True):
            self._hear(charge, future, verdict, share)

    async def _of_router(self, report: LimitReport, exchange: Exchange) -> LimitAnswer | None:
        """Return the Router's answer; None if it does not arrive in time."""
        requests, tokens = self._owed_requests.copy(), self._owed_tokens.copy()
        told = Counter(report.returned)
        told.update(tokens)
        try:
            async with asyncio.timeout(PATIENCE_S):
                answer = await exchange(replace(report, returned=dict(told), admitted=dict(requests)))
        except Exception as error:
            if self._alone is None:
                logger.warning("Limits go by what was known: the Router does not answer: %r", error)
            return None
        self._ingresses, self._alone = answer.ingresses, None
        for owed, paid in ((self._owed_requests, requests), (self._owed_tokens, tokens)):
            owed.subtract(paid)
            for name in [name for name, count in owed.items() if not count]:
                del owed[name]
        return answer

    def _ask(self, charge: Charge, now_s: float) -> Ask:
        client, heard = charge.client, self._heard.get(charge.client.name)
        known = Levels() if heard is None else heard.levels.after(now_s - heard.at_s, client.limits, heard.returned)
        return Ask(client.name, client.limits, charge.tokens, known)

    def _decide_alone(self, report: LimitReport, now_s: float) -> LimitAnswer:
        """Decide with this process's share of each limit and of its last known remainder."""
        if self._alone is None:
            self._alone = LimitBook()
        count = self._ingresses
        asks = (Ask(a.client, a.limits.share(count), a.tokens, a.known.times(1 / count)) for a in report.asks)
        answer = self._alone.exchange(replace(report, asks=tuple(asks)), now_s)
        verdicts = []
        for ask, verdict in zip(report.asks, answer.verdicts, strict=True):
            if verdict.refusal is None:
                self._owed_requests[ask.client] += 1
                self._owed_tokens[ask.client] -= ask.tokens
            verdicts.append(replace(verdict, refusal=verdict.refusal and _of_whole(verdict.refusal, ask.limits)))
        return replace(answer, verdicts=tuple(verdicts))

    def _hear(self, charge: Charge, future: "asyncio.Future[Verdict]", verdict: Verdict, share: int) -> None:
        client = charge.client
        if client.name not in self._heard and len(self._heard) >= LEVELS_KEPT:
            del self._heard[next(iter(self._heard))]
        # What was returned during the call is in no report yet.
        levels, returned = verdict.levels.times(share), self._returned[client.name]
        self._heard[client.name] = _Heard(levels, asyncio.get_running_loop().time(), returned)
        if verdict.refusal is None:
            charge.is_open = True
            self._open[client.name] += 1
            self._waiting[client.name] += charge.tokens
        if not future.cancelled():
            future.set_result(verdict)
        elif verdict.refusal is None:
            self._left(charge)

    def _left(self, charge: Charge) -> None:
        """End a request whose client left before its verdict."""
        charge.used = Usage()
        self.end(charge)


def _of_whole(refusal: Refusal, limits: Limits) -> Refusal:
    """Return the refusal by a share of a limit in terms of the limit."""
    value: int = getattr(limits, refusal.limit)
    fits_later = refusal.retry_after_s == math.inf and refusal.needed <= value
    return replace(refusal, value=value, retry_after_s=AGAIN_S if fits_later else refusal.retry_after_s)


def _refused(client: Client, refusal: Refusal) -> LimitError:
    limit = f"{refusal.limit} of the API key {client.name} is {refusal.value}"
    if refusal.retry_after_s == math.inf:
        problem = f"Request too large: {limit}, and this request alone may take {refusal.needed}."
        return LimitError(f"{problem} Shorten the prompt, or lower max_tokens.", None, refusal.limit)
    wait_s = refusal.retry_after_s or 0.0
    after = f"Try again in {max(0.001, wait_s):.3g} s." if wait_s else "Try again when a request has ended."
    return LimitError(f"Rate limit reached: {limit}. {after}", wait_s, refusal.limit)
