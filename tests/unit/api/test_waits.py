"""The wait that clients of a full model are told."""

import pytest

from peagle.api import waits
from peagle.api.waits import FRESH_S, Waits


def test_the_last_expectation_holds_until_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = [100.0]
    monkeypatch.setattr(waits.time, "monotonic", lambda: now_s[0])
    told = Waits()
    assert told.of("m", 1.0) == 1.0
    told.expect("m", 40.0)
    told.expect("m", 8.5)
    now_s[0] += FRESH_S
    assert (told.of("m", 1.0), told.of("m", 9.0)) == (8.5, 9.0)
    now_s[0] += 0.1
    assert told.of("m", 1.0) == 1.0
