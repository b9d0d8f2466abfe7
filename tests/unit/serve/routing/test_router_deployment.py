"""An operator's limits on a model's depth, and the Router's log about assumed step times."""

import logging
from pathlib import Path

import pytest

from peagle.config import parse_deployment
from peagle.errors import ConfigError, NotFoundError
from peagle.router.depth import DepthLimits
from peagle.router.fairness.client_terms import Limits
from peagle.router.fairness.limit_book import Ask, LimitReport
from peagle.router.snapshot import ReplicaSnapshot
from peagle.serve.routing.router_deployment import Router
from support.depth.depth_reports import report

MODEL = {
    "name": "m",
    "target": {"source": "openai/gpt-oss-120b"},
    "drafter": {"source": "amazon/gpt-oss-120b-p-eagle", "method": "p-eagle", "trained_depth": 8},
    "speculation": {"depth_max": 7, "adaptive": True},
}


def router() -> Router:
    return Router({"m": parse_deployment(MODEL, origin="m.yaml", base=Path.cwd())})


@pytest.mark.parametrize(
    "limits",
    [None, DepthLimits(floor=3, ceiling=3), DepthLimits(pin=7), DepthLimits(floor=7), DepthLimits(paused=True)],
)
async def test_what_can_be_kept_is_taken(limits: DepthLimits | None) -> None:
    await router().limit_model("m", limits)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (DepthLimits(pin=8), "pin = 8: the drafter does not draft that. Name a K from 0 to 7"),
        (DepthLimits(ceiling=9), "ceiling = 9: the drafter does not draft that"),
        (DepthLimits(floor=5, ceiling=3), "floor = 5: it is above the ceiling of 3. Lower the floor"),
    ],
)
async def test_what_cannot_is_refused_with_the_fix(limits: DepthLimits, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        await router().limit_model("m", limits)


async def test_it_decides_of_all_ingress_processes_requests_whether_they_are_within_limits() -> None:
    book, ask = Router({}), Ask("team-a", Limits(requests_per_minute=1), 10)
    answers = [await book.limit_clients(LimitReport(ingress, {}, {}, (ask,))) for ingress in ("a", "b")]
    assert [answer.ingresses for answer in answers] == [1, 2]
    assert [answer.verdicts[0].refusal is None for answer in answers] == [True, False]


async def test_a_model_whose_depth_does_not_adapt_is_not_found() -> None:
    with pytest.raises(NotFoundError, match="other"):
        await router().limit_model("other", DepthLimits(pin=1))


def unknown(**speculation: float) -> Router:
    raw = {**MODEL, "target": {"source": "org/unheard-of"}, "speculation": {"adaptive": True, **speculation}}
    return Router({"m": parse_deployment(raw, origin="m.yaml", base=Path.cwd())})


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


@pytest.mark.parametrize(
    ("speculation", "then"),
    [
        ({}, "Each replica times its steps for up to 25 s before its first request."),
        ({"calibration_s": 0}, "With speculation.calibration_s 0 nothing is timed before the first request"),
    ],
)
def test_a_stand_in_is_told_once_with_fields_and_fixes(
    speculation: dict[str, float], then: str, caplog: pytest.LogCaptureFixture
) -> None:
    unknown(**speculation)
    (told,) = warnings(caplog)
    assert told.startswith("m: the first guess of its step times is a stand-in. target.source = 'org/unheard-of': ")
    for part in (
        "gpt-oss-20b's size stands in",
        "resources.accelerator_type: no GPU is named",
        "a B200's speed stands in",
        then,
    ):
        assert part in told


def test_of_a_known_target_on_a_known_device_nothing_is_told(caplog: pytest.LogCaptureFixture) -> None:
    raw = {**MODEL, "resources": {"accelerator_type": "H200"}}
    Router({"m": parse_deployment(raw, origin="m.yaml", base=Path.cwd())})
    assert warnings(caplog) == []


async def test_a_replica_s_metrics_say_what_is_a_stand_in_from_its_first_report_on() -> None:
    model = unknown()
    assert await model.estimates() == {"m": {}}
    await model.report("m", ReplicaSnapshot("r1", 0.0), report())
    assert await model.estimates() == {"m": {"r1": {"prior_assumed": {"target": 1, "device": 1}}}}
