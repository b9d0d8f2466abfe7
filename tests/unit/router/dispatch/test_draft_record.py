import pytest

from peagle.router.dispatch.draft_record import HALF_LIFE_S, KINDS_MAX, DraftRecord, EndedDrafts, tokens_expected

CODE, NOISE = 1, 2


def drafts(kind: int, right_ratio: float, depth: int, number: int = 1000) -> EndedDrafts:
    accepted = number * (tokens_expected(right_ratio, depth) - 1.0)
    return EndedDrafts(kind, number, number * depth, round(accepted))


@pytest.mark.parametrize("depth", [1, 3, 7])
@pytest.mark.parametrize("right_ratio", [0.1, 0.5, 0.9])
def test_the_learned_ratio_does_not_depend_on_k(depth: int, right_ratio: float) -> None:
    record = DraftRecord()
    record.add([drafts(CODE, right_ratio, depth)], 0.0)
    assert record.known(0.0)[CODE] == pytest.approx(right_ratio, abs=0.01)


def test_kinds_are_told_apart_and_reports_add_up() -> None:
    record = DraftRecord()
    for now_s in range(5):
        record.add([drafts(CODE, 0.8, 5, 20), drafts(NOISE, 0.3, 1, 20)], float(now_s))
    known = record.known(5.0)
    assert known[CODE] == pytest.approx(0.8, abs=0.03)
    assert known[NOISE] == pytest.approx(0.3, abs=0.03)


def test_few_drafts_are_ignored_and_old_ones_are_forgotten() -> None:
    record = DraftRecord()
    record.add([drafts(CODE, 0.8, 3, 10), drafts(NOISE, 0.3, 3, 100)], 0.0)
    assert record.known(0.0).keys() == {NOISE}
    assert not record.known(2.0 * HALF_LIFE_S)


def test_a_kind_that_changes_is_followed() -> None:
    record = DraftRecord()
    record.add([drafts(CODE, 0.9, 3, 100_000)], 0.0)
    for now_s in range(10):
        record.add([drafts(CODE, 0.2, 3, 2000)], float(now_s))
    assert record.known(10.0)[CODE] < 0.4


def test_no_more_kinds_are_kept_than_the_bound_and_the_latest_stay() -> None:
    record = DraftRecord()
    record.add((drafts(kind, 0.5, 3) for kind in range(2 * KINDS_MAX)), 0.0)
    assert record.known(0.0).keys() == set(range(KINDS_MAX, 2 * KINDS_MAX))


def test_all_right_and_all_wrong_are_within_bounds() -> None:
    record = DraftRecord()
    record.add([EndedDrafts(CODE, 100, 700, 700), EndedDrafts(NOISE, 100, 700, 0)], 0.0)
    known = record.known(0.0)
    assert known[CODE] == pytest.approx(1.0, abs=1e-3)
    assert known[NOISE] == pytest.approx(0.0, abs=1e-3)
