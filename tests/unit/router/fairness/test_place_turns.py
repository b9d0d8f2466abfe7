"""The order in which waiting requests of several clients get places."""

from collections import Counter

from peagle.router.fairness.place_turns import PlaceTurns
from peagle.router.fairness.step_sharing import BATCH_SHARE, Flow

MANY, FEW, HEAVY, BATCH = Flow("many"), Flow("few"), Flow("heavy", 3.0), Flow("batch", is_batch=True)


def flood(turns: PlaceTurns, flow: Flow, count: int, tokens: int = 100) -> None:
    for number in range(count):
        turns.enter(f"{flow.client}-{number}", flow, tokens)


def admit(turns: PlaceTurns, count: int) -> list[str]:
    """Give `count` places to the next requests; return their ids."""
    admitted = []
    for _ in range(count):
        request_id = next(turns.in_order())
        turns.admit(request_id)
        admitted.append(request_id)
    return [request_id.rpartition("-")[0] for request_id in admitted]


def test_one_request_is_next_however_many_of_another_client_wait() -> None:
    turns = PlaceTurns()
    flood(turns, MANY, 2000)
    admit(turns, 8)
    turns.enter("few-0", FEW, 5000)
    assert admit(turns, 3) == ["few", "many", "many"]


def test_one_client_alone_is_served_in_the_order_of_arrival() -> None:
    turns = PlaceTurns()
    flood(turns, MANY, 5)
    assert list(turns.in_order()) == [f"many-{number}" for number in range(5)]


def test_requests_are_admitted_in_the_predicted_order() -> None:
    turns = PlaceTurns()
    for flow in (MANY, HEAVY, BATCH, FEW):
        flood(turns, flow, 40, tokens=50 * len(flow.client))
    foretold = [each.rpartition("-")[0] for each in turns.in_order()]
    assert admit(turns, 160) == foretold


def test_places_are_shared_by_tokens_and_weight() -> None:
    turns = PlaceTurns()
    flood(turns, MANY, 400)
    flood(turns, HEAVY, 400)
    flood(turns, FEW, 400, tokens=50)  # twice as many requests of half the size
    assert Counter(admit(turns, 240)) == {"many": 40, "heavy": 120, "few": 80}


def test_the_batch_class_yields_and_is_not_starved() -> None:
    turns = PlaceTurns()
    flood(turns, BATCH, 400)
    flood(turns, MANY, 400)
    assert admit(turns, 1) == ["many"]
    assert Counter(admit(turns, 340))["batch"] == 340 * BATCH_SHARE // (1 + BATCH_SHARE)


def test_a_returning_client_has_no_credit_but_keeps_its_debt() -> None:
    turns = PlaceTurns()
    flood(turns, MANY, 100)
    turns.enter("few-0", FEW, 1000)
    assert admit(turns, 2) == ["few", "many"]
    turns.enter("few-1", FEW, 1000)
    assert admit(turns, 12) == ["many"] * 9 + ["few"] + ["many"] * 2
    # A client that comes later does not get credit for the time before it asked.
    flood(turns, HEAVY, 100, tokens=300)
    assert Counter(admit(turns, 20)) == {"many": 10, "heavy": 10}


def test_a_lost_place_costs_nothing() -> None:
    turns = PlaceTurns()
    flood(turns, MANY, 10)
    turns.enter("few-0", FEW, 1000)
    turns.enter("few-1", FEW, 1000)
    assert admit(turns, 1) == ["few"]
    turns.enter("few-0", FEW, 1000, again=True)
    assert next(turns.in_order()) == "few-0"
    assert admit(turns, 3) == ["few", "many", "many"]


def test_a_cancelled_request_leaves_nothing_and_an_empty_queue_resets_all_times() -> None:
    turns = PlaceTurns()
    flood(turns, MANY, 3, tokens=1000)
    admit(turns, 1)
    for number in range(3):
        turns.leave(f"many-{number}")
        turns.admit(f"many-{number}")  # neither request is waiting any more
    assert list(turns.in_order()) == []
    flood(turns, HEAVY, 1)
    flood(turns, MANY, 1)
    assert admit(turns, 2) == ["heavy", "many"]


def test_requests_are_told_apart_by_their_flow() -> None:
    turns = PlaceTurns()
    flood(turns, MANY, 2)
    flood(turns, FEW, 1)
    assert turns.are_of_one_flow("many-0", "many-1")
    assert not turns.are_of_one_flow("many-0", "few-0")
