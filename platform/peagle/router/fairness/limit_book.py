"""Decides whether a client's next request is within its limits.

One book decides for all ingress processes, so a limit is exact whichever process receives a request. With each report
a process states its open requests, so that a restarted book recovers them, and corrects its earlier token estimates.
Times are seconds on one monotonic clock of the caller.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from peagle.router.fairness.client_terms import Limits
from peagle.router.fairness.rate_bucket import MINUTE_S, Bucket

GONE_AFTER_S = 5.0
"""Silence after which a process counts as having nothing open, in seconds."""
FORGET_EVERY_S = 60.0


@dataclass(frozen=True, slots=True)
class Levels:
    """What remains of a client's limits per minute; None without such a limit."""

    requests: float | None = None
    tokens: float | None = None

    def times(self, factor: float) -> "Levels":
        scaled = (None if level is None else level * factor for level in (self.requests, self.tokens))
        return Levels(*scaled)

    def after(self, age_s: float, limits: Limits, returned: int) -> "Levels":
        """Return the levels `age_s` later, if nothing else is taken; `returned` tokens are given back."""
        return Levels(
            _later(self.requests, limits.requests_per_minute, age_s),
            _later(self.tokens, limits.tokens_per_minute, age_s, returned),
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """A request that asks for admission.

    Attributes:
        client: Its client's name.
        limits: The client's limits, as the asking process knows them.
        tokens: Expected tokens of prompt and answers together.
        known: The levels as far as the process knows them, for a book that does not know the client.
    """

    client: str
    limits: Limits
    tokens: int
    known: Levels = Levels()


@dataclass(frozen=True, slots=True)
class Held:
    """A client's admitted requests in one process: the number open, and the tokens of those that wait."""

    requests: int = 0
    waiting_tokens: int = 0


@dataclass(frozen=True, slots=True)
class LimitReport:
    """An ingress process's report and questions.

    Attributes:
        ingress: Its name.
        held: Its open requests, by client; clients without any are left out.
        returned: Tokens expected but not used since its last report, by client; negative if more were used.
        asks: In the order of their arrival.
        admitted: Requests that the process admitted on its own since its last acknowledged report, by client; their
            tokens are in `returned`.
    """

    ingress: str
    held: Mapping[str, Held]
    returned: Mapping[str, int]
    asks: tuple[Ask, ...] = ()
    admitted: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The limit that refuses a request.

    Attributes:
        limit: Its name in the keys file.
        value: Its value.
        needed: What the request needs of it.
        retry_after_s: When enough is available; infinite if the request alone exceeds the limit, None if it depends on
            other requests.
    """

    limit: str
    value: int
    needed: int
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one `Ask`: admitted unless there is a refusal; `levels` are those afterwards."""

    refusal: Refusal | None
    levels: Levels


@dataclass(frozen=True, slots=True)
class LimitAnswer:
    """The answer to a process: the number of reporting processes, and the verdicts in the order of its asks."""

    ingresses: int
    verdicts: tuple[Verdict, ...]


@dataclass(slots=True)
class _Account:
    limits: Limits
    requests: Bucket | None
    tokens: Bucket | None
    asked_at_s: float

    def levels(self) -> Levels:
        return Levels(
            None if self.requests is None else self.requests.level, None if self.tokens is None else self.tokens.level
        )


@dataclass(slots=True)
class LimitBook:
    """The accounts of all clients with limits."""

    _accounts: dict[str, _Account] = field(default_factory=dict)
    _held: dict[str, dict[str, Held]] = field(default_factory=dict)
    _heard_at_s: dict[str, float] = field(default_factory=dict)
    _forgot_at_s: float = -math.inf

    def exchange(self, report: LimitReport, now_s: float) -> LimitAnswer:
        """Take in a process's report; answer its asks."""
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
        """Return the client's account, refilled until now, under the limits of the ask."""
        account = self._accounts.get(ask.client)
        if account is None:
            account = self._accounts[ask.client] = _Account(ask.limits, None, None, now_s)
        known, limits = ask.known, ask.limits
        account.requests = _bucket(account.requests, limits.requests_per_minute, known.requests, now_s)
        account.tokens = _bucket(account.tokens, limits.tokens_per_minute, known.tokens, now_s)
        account.limits, account.asked_at_s = limits, now_s
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
            # Only after a minute without an ask, because by then the levels that processes know are full again, too.
            if now_s - account.asked_at_s < MINUTE_S:
                continue
            buckets = (account.requests, account.tokens)
            if all(bucket is None or bucket.at(now_s).level >= bucket.per_minute for bucket in buckets):
                del self._accounts[name]


def _later(level: float | None, per_minute: int | None, age_s: float, returned: int = 0) -> float | None:
    if level is None or per_minute is None:
        return None
    return Bucket(per_minute, level, 0.0).less(-returned).at(age_s).level


def _bucket(bucket: Bucket | None, per_minute: int | None, known: float | None, now_s: float) -> Bucket | None:
    if per_minute is None:
        return None
    if bucket is None:
        level = per_minute if known is None else min(per_minute, known)
        return replace(Bucket.full(per_minute, now_s), level=level)
    return bucket.at(now_s).limited_to(per_minute) if bucket.per_minute != per_minute else bucket.at(now_s)
