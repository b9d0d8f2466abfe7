import pytest

from peagle.bench.dispatch.compared_policies import COMPARED, compared
from peagle.errors import ConfigError
from peagle.router.dispatch import POLICIES


def test_all_policies_are_compared_unless_some_are_named() -> None:
    assert compared([]) == COMPARED == (*POLICIES, "power-of-two", "round-robin")
    assert compared(["round-robin", "soonest", "round-robin"]) == ("round-robin", "soonest")


def test_a_policy_that_is_not_known_is_named_with_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"fastest.*Known: soonest, .*power-of-two, round-robin"):
        compared(["soonest", "fastest"])
