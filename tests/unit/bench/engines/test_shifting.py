"""A run with shifting load and prompts: the same prompts for all, and ratios to the best static K."""

from typing import Any

import pytest

from peagle.bench.engines.engine_plan import Variant
from peagle.bench.engines.shifting import (
    ORDER,
    Phase,
    PhaseRun,
    Take,
    make_phases,
    measure_shifting,
    planned_takes,
    shifting_rows,
)
from peagle.bench.engines.speculation_report import shifting_line
from peagle.errors import ConfigError
from support.engines.generator_engine import OUTPUT_TOKENS, Generator

NONE, THREE, SEVEN = Variant(0, "none", 0), Variant(1, "p-eagle", 3), Variant(1, "p-eagle", 7)
ADAPTIVE = Variant(1, "p-eagle", 7, adaptive=True)


def encode(text: str) -> list[int]:
    return [ord(letter) % 100 for letter in text]


def test_phases_step_from_one_to_many_and_back_with_every_kind_of_prompt() -> None:
    phases = make_phases(["def f():", "class A:"], encode, vocabulary=128, tokens_max=500)
    assert [(phase.kind, phase.concurrency) for phase in phases] == list(ORDER)
    assert phases == make_phases(["def f():", "class A:"], encode, vocabulary=128, tokens_max=500)
    assert all(len(phase.prompts) >= 2 * phase.concurrency for phase in phases)
    noise = next(phase for phase in phases if phase.kind == "noise")
    assert len({tuple(prompt) for prompt in noise.prompts}) == len(noise.prompts)
    assert max(max(prompt) for prompt in noise.prompts) < 128


def test_prompts_that_do_not_fit_are_left_out_and_where_none_does_that_is_said() -> None:
    code = next(each for each in make_phases(["x" * 900, "def f():"], encode, 128, 500) if each.kind == "code")
    assert all(prompt == encode("def f():") for prompt in code.prompts)
    with pytest.raises(ConfigError, match=r"--shifting.*70 tokens.*--tokens"):
        make_phases(["x" * 900], encode, vocabulary=128, tokens_max=70)


async def test_all_take_turns_phase_by_phase_and_each_has_its_own_take() -> None:
    log: list[tuple[str, int]] = []
    engines: Any = [Generator(log, "none"), Generator(log, "p-eagle")]
    load = [Phase("code", 1, ([5], [6])), Phase("prose", 2, ([7], [8], [9]))]
    kept: list[Take] = []
    todo = planned_takes([NONE, THREE, ADAPTIVE], 2)[1:]  # one was made before
    await measure_shifting(engines, [NONE, THREE, ADAPTIVE], load, todo=todo, begin=lambda _: None, keep=kept.append)
    assert {take.key for take in kept} == set(todo)
    assert all([run.tokens for run in take.phases] == [2 * OUTPUT_TOKENS, 3 * OUTPUT_TOKENS] for take in kept)
    assert all((take.phases[0].settled_s is None) == (take.key.variant != ADAPTIVE.name) for take in kept)
    one, seven = ("p-eagle", 3), ("p-eagle", 7)
    assert log[:4] == [one, seven, seven, one], "the second repeat's take of none is not due in the first"
    assert len(log) == 2 * len(todo)


def phases(*speeds: float, settled_s: float | None = None) -> list[PhaseRun]:
    return [PhaseRun(1.0, int(speed), settled_s) for speed in speeds]


def test_the_rival_is_the_best_single_k_and_repeats_are_paired() -> None:
    runs = {
        NONE: [phases(50, 50), phases(60, 60)],
        THREE: [phases(80, 80), phases(90, 90)],
        SEVEN: [phases(120, 20), phases(140, 20)],
        ADAPTIVE: [phases(120, 80, settled_s=1.5), phases(140, 76, settled_s=2.5)],
    }
    adaptive = shifting_rows(runs)[-1]
    assert adaptive["best_static"] == "p-eagle K=3"
    assert adaptive["ratio_to_best_static"] == {"median": pytest.approx(1.225), "low": 1.2, "high": 1.25}
    assert adaptive["ratio_to_none"]["low"] == pytest.approx(1.8)
    assert adaptive["settled_s"] == [2.5, 2.5]
    assert "ratio_to_best_static" not in shifting_rows(runs)[1]
    assert "(1.20 to 1.25) times p-eagle K=3" in shifting_line(adaptive)
    assert "2.5, 2.5 s" in shifting_line(adaptive)
