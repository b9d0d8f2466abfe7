import subprocess
import sys
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from peagle.router.dispatch import Homes, affinity_key
from peagle.router.dispatch.homes import HOMES, SLOTS

KEYS = range(SLOTS)
NAMES = [f"replica-{place}" for place in range(12)]


def homes_of_all(homes: Homes) -> list[list[str]]:
    return [homes.of_key(key) for key in KEYS]


def test_every_process_computes_the_same_ranking() -> None:
    code = "from peagle.router.dispatch import *\nprint(Homes.of('abcde').of_key(affinity_key('chat')))"
    said = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert said == {f"{Homes.of('edcba').of_key(affinity_key('chat'))}\n"}


def test_keys_spread_evenly() -> None:
    share = Counter(ranked[0] for ranked in homes_of_all(Homes.of(NAMES)))
    assert set(share) == set(NAMES)
    mean = SLOTS / len(NAMES)
    assert max(share.values()) < 1.25 * mean
    assert min(share.values()) > 0.75 * mean


def test_texts_spread_over_the_slots() -> None:
    slots = Counter(affinity_key(f"session {number}") % SLOTS for number in range(4 * SLOTS))
    assert len(slots) > 0.95 * SLOTS


def test_a_replica_that_leaves_moves_only_its_own_keys_and_each_to_its_next_home() -> None:
    before = Homes.of(NAMES)
    after = before.changed(left=["replica-3"])
    for old, new in zip(homes_of_all(before), homes_of_all(after), strict=True):
        assert new[: HOMES - 1] == [name for name in old if name != "replica-3"][: HOMES - 1]


def test_a_replica_that_joins_takes_keys_only_for_itself() -> None:
    before, after = Homes.of(NAMES), Homes.of(NAMES).changed(joined=["new"])
    for old, new in zip(homes_of_all(before), homes_of_all(after), strict=True):
        assert [name for name in new if name != "new"] == old[: HOMES - ("new" in new)]


def test_a_fleet_smaller_than_the_ranking_has_fewer_homes() -> None:
    assert Homes.of([]).of_key(5) == []
    assert Homes.of(["only"]).of_key(5) == ["only"]
    assert sorted(Homes.of(["a", "b"]).of_key(5)) == ["a", "b"]


@given(st.lists(st.tuples(st.booleans(), st.sampled_from(NAMES[:6])), max_size=12))
def test_the_ranking_depends_only_on_the_current_members(changes: list[tuple[bool, str]]) -> None:
    homes, members = Homes.of(NAMES[:2]), set(NAMES[:2])
    for joins, name in changes:
        homes = homes.changed(joined=[name]) if joins else homes.changed(left=[name])
        members = members | {name} if joins else members - {name}
    fresh = Homes.of(sorted(members))
    assert [homes.of_key(key) for key in KEYS[::64]] == [fresh.of_key(key) for key in KEYS[::64]]
