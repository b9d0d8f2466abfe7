"""Places that clients leave for each other."""

from peagle.router.fairness.place_shares import PlaceShares


def taken(shares: PlaceShares, client: str, places: int) -> int:
    count = 0
    while shares.take(client, places):
        count += 1
    return count


def test_a_flooding_client_leaves_half_of_the_places() -> None:
    assert taken(PlaceShares(), "a", 1280) == 640


def test_every_new_client_finds_places() -> None:
    shares = PlaceShares()
    assert [taken(shares, client, 1280) for client in "abc"] == [640, 320, 160]
    for _ in range(640):
        shares.give_back("a")
    assert taken(shares, "b", 1280) == 0 + (1280 - 480 - 320) // 2
    assert shares.take("a", 1280)


def test_a_returned_place_can_be_taken_again() -> None:
    shares = PlaceShares()
    assert taken(shares, "a", 10) == 5
    shares.give_back("a")
    assert taken(shares, "a", 10) == 1
