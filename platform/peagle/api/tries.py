"""The tries at one client's request: what the ingress and the request router in its process tell each other of it.

Ray Serve makes the request router by itself and hands it what the replica is called with, before that is pickled. So
an argument of the call carries the ingress's own object to it, and travels on to the replica without it.

Whoever imports the request router imports this, such as Serve's controller. Nothing here may import vLLM: that takes a
core for 15 s.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peagle.api.clients.request_charge import Charge
    from peagle.api.ledger import Ledger


class Tries:
    """One request to `model`, which is asked again elsewhere where a replica is lost.

    Attributes:
        charge: Whose it is and what is expected of it; None where no keys are asked for.
        failed: The replicas that were lost with it.
    """

    def __init__(self, model: str, ledger: "Ledger | None" = None) -> None:
        self._model, self._ledger = model, ledger
        self._asked: str | None = None
        self.charge: Charge | None = None
        self.failed: frozenset[str] = frozenset()

    def decided(self, reason: str) -> None:
        """Count what dispatch decided for it."""
        if self._ledger is not None:
            self._ledger.metrics.decided(self._model, reason)

    def waits(self, seconds: float) -> None:
        """Tell when dispatch expects a place for it."""
        if self._ledger is not None:
            self._ledger.waits.expect(self._model, seconds)

    def sent(self, replica_id: str) -> None:
        """Tell which replica has it now."""
        self._asked = replica_id

    def lost(self) -> None:
        """Note that the replica that has it is lost, so that the next try goes elsewhere."""
        if self._asked is not None:
            self.failed |= {self._asked}


def tries_of(arguments: Sequence[Any], model: str = "") -> Tries:
    """The `tries` that one of a call's arguments carries; nobody's unless an ingress made the call."""
    carried = (getattr(argument, "tries", None) for argument in arguments)
    return next((tries for tries in carried if isinstance(tries, Tries)), Tries(model))
