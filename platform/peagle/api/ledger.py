"""What an ingress process counts and expects, in one object that is handed to whoever in it has something to add."""

from collections import defaultdict
from typing import Any

from peagle.api.clients.client_limits import ClientLimits
from peagle.api.clients.request_charge import UsualLengths
from peagle.api.http_metrics import HttpMetrics
from peagle.api.waits import Waits
from peagle.router.fairness.place_shares import PlaceShares


class Ledger:
    """An ingress process's counters, how long its models' queues are expected to stay full, and its clients' limits.

    It lies in the application's state. The application travels to the process that it runs in, and what is counted
    does not: there it arrives empty.
    """

    def __init__(self) -> None:
        self.metrics = HttpMetrics()
        self.waits = Waits()
        self.limits = ClientLimits()
        self.lengths = UsualLengths()
        self.places: defaultdict[str, PlaceShares] = defaultdict(PlaceShares)

    def __reduce__(self) -> Any:
        return type(self), ()
