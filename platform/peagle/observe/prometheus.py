"""Prometheus' answers to a dashboard's queries."""

import math
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import httpx

from peagle.client.server_url import heeds_proxies
from peagle.errors import StartupError

_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Line:
    """One series of an answer: its legend, and (Unix seconds, value) of each sample."""

    name: str
    points: tuple[tuple[float, float], ...]

    @property
    def has_value(self) -> bool:
        """Whether there is a value to draw: a ratio of zero to zero is NaN."""
        return any(math.isfinite(value) for _, value in self.points)


@dataclass(frozen=True, slots=True)
class Answer:
    """All series of one query; `problem` is Prometheus' reason for refusing it."""

    lines: tuple[Line, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """Time range of a picture: Unix seconds, and the step between samples."""

    start_s: float
    end_s: float
    step_s: float

    @classmethod
    def of_last(cls, minutes: float) -> "Span":
        end_s = time.time()
        return cls(end_s - 60.0 * minutes, end_s, max(5.0, minutes * 60.0 / 120.0))

    @property
    def window(self) -> str:
        """Value of Grafana's `$__rate_interval`: at least four scrapes, which the chart sets 15 s apart."""
        return f"{max(60, round(self.step_s * 4))}s"


def filled_in(expr: str, span: Span, variables: Mapping[str, str]) -> str:
    """Return `expr` with Grafana's variables filled in; variables that are not given match everything."""
    expr = expr.replace("$__rate_interval", span.window)
    return re.sub(r"\$([a-z]+)", lambda found: variables.get(found[1], ".*"), expr)


def legend(form: str, labels: Mapping[str, str]) -> str:
    """Return the name of a series, as Grafana formats it with `form`."""
    if form == "__auto":
        return ", ".join(f"{name}={value}" for name, value in sorted(labels.items()) if name != "__name__")
    return _LABEL.sub(lambda found: labels.get(found[1], ""), form).strip()


class Prometheus:
    """Client of the Prometheus at `url`, while entered. Raises StartupError if it does not answer."""

    def __init__(self, url: str) -> None:
        self._client = httpx.Client(base_url=url.rstrip("/"), timeout=30.0, trust_env=heeds_proxies(url))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def over(self, expr: str, form: str, span: Span) -> Answer:
        """Return every series of `expr` over `span`."""
        asked = {"query": expr, "start": span.start_s, "end": span.end_s, "step": span.step_s}
        return self._answer("query_range", asked, form)

    def now(self, expr: str, form: str, span: Span) -> Answer:
        """Return every series of `expr` at the end of `span`."""
        return self._answer("query", {"query": expr, "time": span.end_s}, form)

    def _answer(self, path: str, asked: Mapping[str, Any], form: str) -> Answer:
        try:
            answer = self._client.post(f"/api/v1/{path}", data=asked)
            body = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            url = str(self._client.base_url)
            raise StartupError(f"no Prometheus answers at {url} ({error})", "Start one with make observe.") from None
        if body.get("status") != "success":
            return Answer(problem=str(body.get("error", answer.status_code)))
        rows = body["data"]["result"]
        return Answer(tuple(_line(row, form) for row in rows) if body["data"]["resultType"] != "scalar" else ())


def _line(row: Mapping[str, Any], form: str) -> Line:
    samples = row["values"] if "values" in row else [row["value"]]
    return Line(legend(form, row["metric"]), tuple((float(at), float(value)) for at, value in samples))
