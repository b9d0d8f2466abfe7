"""When an engine's silence is unusual, and when the engine counts as dead."""

import pytest

from peagle.router.engine_pulse import PREFILL_TOKENS_PER_S, STALLED_AFTER_S, EnginePulse, Pulse

TICK_S = 0.5
HUNG_AFTER_S = 30.0


class Watched:
    """A pulse that is checked twice a second."""

    def __init__(self) -> None:
        self.pulse = EnginePulse(HUNG_AFTER_S)
        self.now_s = 100.0
        self.tokens, self.rate = 0, 1000.0

    def pass_s(self, seconds: float, step_s: float | None = None) -> Pulse:
        """Let time pass, with steps of `step_s` or none; return the result of the last look."""
        seen = Pulse.BEATS
        until_s, next_step_s = self.now_s + seconds, self.now_s
        while self.now_s < until_s - 1e-9:
            self.now_s += TICK_S
            while step_s is not None and next_step_s + step_s <= self.now_s:
                next_step_s += step_s
                self.pulse.stepped(next_step_s, has_work=True)
            seen = self.pulse.look(self.now_s, self.tokens, self.rate)
        return seen

    def until(self, wanted: Pulse) -> float:
        """Return the seconds of silence until a look returns `wanted`."""
        began_s = self.now_s
        while self.pass_s(TICK_S) is not wanted:
            assert self.now_s - began_s < 1000, "it never came"
        return self.now_s - began_s


@pytest.fixture
def watched() -> Watched:
    return Watched()


def test_an_engine_that_stops_stalls_within_four_seconds_and_hangs_after_its_time(watched: Watched) -> None:
    assert watched.pass_s(10, step_s=0.02) is Pulse.BEATS
    assert watched.until(Pulse.STALLED) <= STALLED_AFTER_S + 2 * TICK_S
    assert watched.until(Pulse.HUNG) == pytest.approx(HUNG_AFTER_S - STALLED_AFTER_S, abs=2 * TICK_S)


def test_a_probe_that_is_answered_is_a_sign_of_life_of_an_idle_engine(watched: Watched) -> None:
    for _ in range(100):
        watched.pulse.answered()
        assert watched.pass_s(TICK_S) is Pulse.BEATS
    assert watched.until(Pulse.STALLED) < 5


def test_a_recovered_engine_counts_as_alive_at_once(watched: Watched) -> None:
    watched.pass_s(10, step_s=0.02)
    watched.until(Pulse.STALLED)
    watched.pulse.answered()
    assert watched.pass_s(TICK_S) is Pulse.BEATS


def test_regularly_long_steps_are_not_a_stall(watched: Watched) -> None:
    watched.pass_s(40, step_s=2.0)
    assert 8 <= watched.until(Pulse.STALLED) < 10


def test_one_long_stall_leaves_the_next_to_be_found_before_it_is_a_hang(watched: Watched) -> None:
    watched.pass_s(5, step_s=0.02)
    watched.now_s += 600
    watched.pulse.stepped(watched.now_s, has_work=True)
    assert watched.until(Pulse.STALLED) <= HUNG_AFTER_S + 2 * TICK_S


def test_a_single_slow_step_is_soon_forgotten(watched: Watched) -> None:
    watched.pass_s(5, step_s=0.02)
    watched.pulse.stepped(watched.now_s + 2.5, has_work=True)
    watched.now_s += 2.5
    watched.pass_s(10, step_s=0.02)
    assert watched.until(Pulse.STALLED) <= STALLED_AFTER_S + 2 * TICK_S


def test_idle_time_is_not_a_step(watched: Watched) -> None:
    watched.pulse.stepped(watched.now_s, has_work=False)
    for _ in range(60):
        watched.pulse.answered()
        watched.pass_s(TICK_S)
    watched.pulse.stepped(watched.now_s, has_work=True)
    assert watched.until(Pulse.STALLED) <= STALLED_AFTER_S + 2 * TICK_S


def test_a_long_prompt_has_its_time(watched: Watched) -> None:
    watched.tokens = 8000  # 8 s at the engine's rate
    assert watched.until(Pulse.STALLED) >= 20


def test_a_new_engine_is_assumed_to_prefill_slowly(watched: Watched) -> None:
    watched.tokens, watched.rate = int(10 * PREFILL_TOKENS_PER_S), 0.0
    assert watched.until(Pulse.STALLED) >= 25


def test_it_is_never_given_up_before_it_stalls(watched: Watched) -> None:
    watched.tokens = 30_000
    stalled_s = watched.until(Pulse.STALLED)
    assert stalled_s > HUNG_AFTER_S
    assert watched.until(Pulse.HUNG) == pytest.approx(stalled_s, abs=2 * TICK_S)


def test_a_watcher_that_was_stopped_itself_does_not_blame_the_engine(watched: Watched) -> None:
    watched.pass_s(5, step_s=0.02)
    watched.now_s += 600
    assert watched.pass_s(TICK_S) is Pulse.BEATS
