"""Shared state of an ingress process: counters, expected waits and client limits."""

from collections import defaultdict
from typing import Any

from peagle.api.clients.client_limits import ClientLimits
from peagle.api.clients.request_charge import UsualLengths
from peagle.api.http_metrics import HttpMetrics
from peagle.api.waits import Waits
from peagle.router.fairness.place_shares import PlaceShares


class Ledger:
    """An ingress process's counters, expected waits for its models' queues, and client limits.

    It is kept in the application's state. When the application is pickled to its process, counted values are not
    included: the ledger starts empty there.
    """

    def __init__(self) -> None:
        self.metrics = HttpMetrics()
        self.waits = Waits()
        self.limits = ClientLimits()
        self.lengths = UsualLengths()
        self.places: defaultdict[str, PlaceShares] = defaultdict(PlaceShares)

    def __reduce__(self) -> Any:
        return type(self), ()
