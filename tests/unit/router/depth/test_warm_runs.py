"""Warm-up covers everything that clients may ask for: each K, several batch sizes, and each sampling path."""

from itertools import pairwise, product

import pytest

from peagle.router.depth import depth_ladder
from peagle.router.depth.warm_runs import SamplingPath, path_of, warm_batch_sizes, warm_runs

PURE = [path for path in SamplingPath if path is not SamplingPath.MIXED]
LADDERS = [(0,), (7,), *(depth_ladder(depth_max) for depth_max in (1, 2, 5, 7, 10, 18))]


@pytest.mark.parametrize("rungs", LADDERS, ids=str)
@pytest.mark.parametrize("batch_max", [1, 2, 3, 8, 24, 128, 256, 1024])
def test_every_rung_runs_at_every_batch_size_through_every_path(rungs: tuple[int, ...], batch_max: int) -> None:
    points = {(depth, run.batch_size, run.path) for run in warm_runs(rungs, batch_max, 2048) for depth in run.depths}
    sizes = warm_batch_sizes(batch_max)
    assert points >= set(product(rungs, sizes, PURE))
    assert points == set(product(rungs, sizes, PURE)) | {
        (depth, size, SamplingPath.MIXED) for depth in rungs for size in sizes if size > 1
    }


@pytest.mark.parametrize("batch_max", range(1, 300))
def test_batch_sizes_are_spread_from_one_to_the_largest(batch_max: int) -> None:
    sizes = warm_batch_sizes(batch_max)
    assert (sizes[0], sizes[-1]) == (1, batch_max)
    assert all(one < other <= 4 * one for one, other in pairwise(sizes))


@pytest.mark.parametrize("batch_max", range(16, 300))
def test_a_batch_of_one_of_a_multiple_of_16_and_of_another_size_are_among_them(batch_max: int) -> None:
    sizes = warm_batch_sizes(batch_max)
    assert 1 in sizes
    assert any(size % 16 == 0 for size in sizes)
    assert any(size > 1 and size % 16 for size in sizes)


def test_k_falls_within_a_run_so_that_none_drafts_after_it_has_rested() -> None:
    assert all(list(run.depths) == sorted(run.depths, reverse=True) for run in warm_runs((0, 3, 1, 7), 8, 512))


@pytest.mark.parametrize("longest", [1, 3, 16, 200, 2048, 8192])
def test_prompts_are_spread_from_one_token_to_a_whole_step(longest: int) -> None:
    lengths = sorted({run.prompt_tokens for run in warm_runs((0, 7), 64, longest)})
    assert (lengths[0], lengths[-1]) == (1, longest)
    assert all(other <= 4 * one for one, other in pairwise(lengths))


def test_paths_that_the_engine_lacks_do_not_run() -> None:
    runs = warm_runs((0, 7), 64, 512, (SamplingPath.GRAMMAR,))
    assert SamplingPath.GRAMMAR not in {run.path for run in runs}
    assert {run.path for run in runs} == set(SamplingPath) - {SamplingPath.GRAMMAR}


def test_requests_of_a_mixed_run_take_all_paths_in_turn() -> None:
    (mixed,) = [run for run in warm_runs((7,), 8, 512) if run.path is SamplingPath.MIXED and run.batch_size == 8]
    assert {path_of(mixed, number, PURE) for number in range(8)} == set(PURE)
    (greedy,) = [run for run in warm_runs((7,), 8, 16) if run.path is SamplingPath.GREEDY and run.batch_size == 8]
    assert {path_of(greedy, number, PURE) for number in range(8)} == {SamplingPath.GREEDY}
