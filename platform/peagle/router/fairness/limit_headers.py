"""OpenAI's rate-limit headers: the limit, what remains of it, and when it is completely free again."""

import math

from peagle.router.fairness.client_terms import Limits
from peagle.router.fairness.limit_book import Levels
from peagle.router.fairness.rate_bucket import Bucket

KINDS = ("requests", "tokens")
NAMES = tuple(f"x-ratelimit-{part}-{kind}" for kind in KINDS for part in ("limit", "remaining", "reset"))


def limit_headers(limits: Limits, levels: Levels, age_s: float) -> dict[str, str]:
    """Return the headers for a client whose levels were as given `age_s` ago, for the limits that it has."""
    headers = {}
    for kind in KINDS:
        per_minute, level = getattr(limits, f"{kind}_per_minute"), getattr(levels, kind)
        if per_minute is None:
            continue
        bucket = Bucket(per_minute, per_minute if level is None else level, 0.0).at(age_s)
        headers[f"x-ratelimit-limit-{kind}"] = str(per_minute)
        headers[f"x-ratelimit-remaining-{kind}"] = str(max(0, math.floor(bucket.level)))
        headers[f"x-ratelimit-reset-{kind}"] = duration(bucket.seconds_until(per_minute))
    return headers


def duration(seconds: float) -> str:
    """Return a duration in OpenAI's format, rounded up to a millisecond: `20ms`, `1.5s`, `6m0s`."""
    ms = math.ceil(round(seconds * 1000, 3))
    if ms < 1000:
        return f"{ms}ms" if ms else "0s"
    minutes, rest_ms = divmod(ms, 60_000)
    hours, minutes = divmod(minutes, 60)
    text = f"{rest_ms / 1000:.3f}".rstrip("0").rstrip(".") + "s"
    return (f"{hours}h" if hours else "") + (f"{minutes}m" if hours or minutes else "") + text
