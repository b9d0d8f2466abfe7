"""What an ingress process counts and expects, in one object that is handed to whoever in it has something to add."""

from typing import Any

from peagle.api.http_metrics import HttpMetrics
from peagle.api.waits import Waits


class Ledger:
    """An ingress process's counters, and how long its models' queues are expected to stay full.

    It lies in the application's state. The application travels to the process that it runs in, and what is counted
    does not: there it arrives empty.
    """

    def __init__(self) -> None:
        self.metrics = HttpMetrics()
        self.waits = Waits()

    def __reduce__(self) -> Any:
        return type(self), ()
