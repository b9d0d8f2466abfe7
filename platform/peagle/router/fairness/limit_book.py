"""Whether a client's next request is within its limits.

One book decides for all ingress processes, so a limit is exact whichever of them a request comes to. A process tells
with each report what is open there, so that a book which was lost knows it again, and how far expected tokens were
wrong. Times are seconds on one monotonic clock of the caller's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from peagle.router.fairness.client_terms import Limits
from peagle.router.fairness.rate_bucket import Bucket

GONE_AFTER_S = 5.0
"""A process that has told nothing for so long has nothing open any more."""
FORGET_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Levels:
    """What a client's limits by the minute left; None without such a limit."""

    requests: float | None = None
    tokens: float | None = None

    def times(self, factor: float) -> "Levels":
        scaled = (None if level is None else level * factor for level in (self.requests, self.tokens))
        return Levels(*scaled)


@dataclass(frozen=True, slots=True)
class Ask:
    """One request that wants to be admitted.

    Attributes:
        client: Its name.
        limits: Its limits, as the process that asks knows them.
        tokens: Expected of prompt and answers together.
        known: The levels that the process heard last, for a book that has not heard of the client.
    """

    client: str
    limits: Limits
    tokens: int
    known: Levels = Levels()


@dataclass(frozen=True, slots=True)
class Held:
    """A client's requests in one process that were admitted: how many are open, and the tokens of those that wait."""

    requests: int = 0
    waiting_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LimitReport:
    """What an ingress process tells and asks.

    Attributes:
        ingress: Its name.
        held: What is open there, by client; clients with nothing open are left out.
        returned: Tokens that were expected and not used, by client, since its last report; negative where more were.
        asks: In the order of their arrival.
        admitted: Requests that the process admitted by itself, by client, since its last report that was heard; their
            tokens are in `returned`.
    """

    ingress: str
    held: Mapping[str, Held]
    returned: Mapping[str, int]
    asks: tuple[Ask, ...] = ()
    admitted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Which limit is in the way.

    Attributes:
        limit: Its name in the keys file.
        value: What it is set to.
        needed: What the request would have taken of it.
        retry_after_s: When there is enough; infinite where the request alone is beyond the limit, and None where that
            depends on other requests.
    """

    limit: str
    value: int
    needed: int
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one `Ask`: admitted unless there is a refusal; `levels` are those after it."""

    refusal: Refusal | None
    levels: Levels


@dataclass(frozen=True, slots=True)
class LimitAnswer:
    """What a process hears: how many processes tell of themselves, and the verdicts in the order of its asks."""

    ingresses: int
    verdicts: tuple[Verdict, ...]


@dataclass(slots=True)
class _Account:
    limits: Limits
    requests: Bucket | None
    tokens: Bucket | None

    def levels(self) -> Levels:
        return Levels(
            None if self.requests is None else self.requests.level, None if self.tokens is None else self.tokens.level
        )


@dataclass(slots=True)
class LimitBook:
    """The accounts of all clients that have limits."""

    _accounts: dict[str, _Account] = field(default_factory=dict)
    _held: dict[str, dict[str, Held]] = field(default_factory=dict)
    _heard_at_s: dict[str, float] = field(default_factory=dict)
    _forgot_at_s: float = -math.inf

    def exchange(self, report: LimitReport, now_s: float) -> LimitAnswer:
        """Take a process's report; answer what it asks."""
        self._forget(now_s)
        self._heard_at_s[report.ingress] = now_s
        self._held[report.ingress] = dict(report.held)
        for name, tokens in report.returned.items():
            account = self._accounts.get(name)
            if account is not None and account.tokens is not None:
                account.tokens = account.tokens.at(now_s).less(-tokens)
        for name, count in report.admitted.items():
            account = self._accounts.get(name)
            if account is not None and account.requests is not None:
                account.requests = account.requests.at(now_s).less(count)
        verdicts = tuple(self._decide(ask, report.ingress, now_s) for ask in report.asks)
        return LimitAnswer(len(self._held), verdicts)

    def _decide(self, ask: Ask, ingress: str, now_s: float) -> Verdict:
        account = self._account(ask, now_s)
        refusal = self._refusal(ask, account)
        if refusal is None:
            if account.requests is not None:
                account.requests = account.requests.less(1)
            if account.tokens is not None:
                account.tokens = account.tokens.less(ask.tokens)
            before = self._held[ingress].get(ask.client, Held())
            self._held[ingress][ask.client] = Held(before.requests + 1, before.waiting_tokens + ask.tokens)
        return Verdict(refusal, account.levels())

    def _account(self, ask: Ask, now_s: float) -> _Account:
        """The client's account, filled until now and under the limits that the ask names."""
        account = self._accounts.get(ask.client)
        if account is None:
            account = self._accounts[ask.client] = _Account(ask.limits, None, None)
        known, limits = ask.known, ask.limits
        account.requests = _bucket(account.requests, limits.requests_per_minute, known.requests, now_s)
        account.tokens = _bucket(account.tokens, limits.tokens_per_minute, known.tokens, now_s)
        account.limits = limits
        return account

    def _refusal(self, ask: Ask, account: _Account) -> Refusal | None:
        limits, everywhere = ask.limits, [held.get(ask.client, Held()) for held in self._held.values()]
        for name, needed, taken in (
            ("requests_at_once", 1, sum(held.requests for held in everywhere)),
            ("tokens_waiting", ask.tokens, sum(held.waiting_tokens for held in everywhere)),
        ):
            most = getattr(limits, name)
            if most is not None and taken + needed > most:
                return Refusal(name, most, needed, math.inf if needed > most else None)
        for name, needed, bucket in (
            ("requests_per_minute", 1, account.requests),
            ("tokens_per_minute", ask.tokens, account.tokens),
        ):
            if bucket is not None and bucket.level < needed:
                most = getattr(limits, name)
                return Refusal(name, most, needed, math.inf if needed > most else bucket.seconds_until(needed))
        return None

    def _forget(self, now_s: float) -> None:
        for ingress, at_s in list(self._heard_at_s.items()):
            if now_s - at_s > GONE_AFTER_S:
                del self._heard_at_s[ingress], self._held[ingress]
        if now_s - self._forgot_at_s < FORGET_EVERY_S:
            return
        self._forgot_at_s = now_s
        for name, account in list(self._accounts.items()):
            buckets = (account.requests, account.tokens)
            if all(bucket is None or bucket.at(now_s).level >= bucket.per_minute for bucket in buckets):
                del self._accounts[name]


def _bucket(bucket: Bucket | None, per_minute: int | None, known: float | None, now_s: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        level = per_minute if known is None else min(per_minute, known)
        return replace(Bucket.full(per_minute, now_s), level=level)
    return bucket.at(now_s).limited_to(per_minute) if bucket.per_minute != per_minute else bucket.at(now_s)
