"""Trials of another K: when one may start, what it must show to be kept, and how long the next one waits."""

from dataclasses import replace
from math import log1p

import pytest

from peagle.router.depth import start
from peagle.router.depth.rule.patience import sure
from peagle.router.depth.rule.probe import Probe, ProbeClock, ProbeKind, next_probe, proves_better
from support.depth_reports import SETTINGS

FORECAST = start(SETTINGS).forecast(SETTINGS, 0.0)
LEAST = log1p(SETTINGS.gain_ratio)
SHORT_S, LONG_S = SETTINGS.probe_wait_s
TRIAL = Probe(0, 3, 2, 0.0, ProbeKind.DUE)


@pytest.mark.parametrize(("allowance", "starts"), [(2.9, False), (3.0, True)])
def test_a_trial_by_the_clock_leaves_one_change_by_which_a_mistake_is_mended(allowance: float, starts: bool) -> None:
    due = replace(ProbeClock.start(SETTINGS), left_s=0.0)
    assert (next_probe(FORECAST, 0, 0, due, allowance) is not None) is starts


def test_a_deeper_k_is_kept_only_if_it_is_surely_better_and_a_shallower_one_if_it_seems_so() -> None:
    seems_better = [
        (index, before, after)
        for index in range(len(FORECAST.ranges))
        for before in SETTINGS.rungs
        for after in SETTINGS.rungs
        if FORECAST.gain(index, before, after).log_ratio > LEAST
    ]
    doubtful = [each for each in seems_better if sure(FORECAST.gain(*each), *each[1:]) <= LEAST]
    assert any(after < before for _, before, after in seems_better)
    assert doubtful
    assert all(after > before for _, before, after in doubtful)
    assert [each for each in seems_better if not proves_better(FORECAST, *each)] == doubtful


def test_after_a_trial_that_brought_nothing_the_next_is_long_off_until_prompts_change() -> None:
    clock = ProbeClock.start(SETTINGS)
    assert clock.left_s == clock.after(TRIAL, True, SETTINGS).left_s == SHORT_S
    after = clock.after(TRIAL, False, SETTINGS)
    assert after.left_s == LONG_S
    assert after.anew(SETTINGS).left_s == SHORT_S
