"""The tries at one client's request, shared by the ingress and the request router in its process.

Ray Serve creates the request router itself and passes it the arguments of the replica's call, before they are pickled.
So an argument of the call carries the ingress's object to the router; it is removed when the argument is pickled.

Every importer of the request router imports this module, such as Serve's controller. It must not import vLLM, which
takes one core for 15 s.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from peagle.api.clients.request_charge import Charge
    from peagle.api.ledger import Ledger

LAST_TRY_HEADER = "x-peagle-last-try"
"""Set on a call that is not tried again, so that its replica does not give it back."""


class Tries:
    """One request to `model`, which is retried on another replica if its replica is lost.

    Attributes:
        charge: Its client and expected tokens; None if no keys are required.
        failed: The replicas that were lost while they had it.
    """

    def __init__(self, model: str, ledger: "Ledger | None" = None) -> None:
        self._model, self._ledger = model, ledger
        self._asked: str | None = None
        self.charge: Charge | None = None
        self.failed: frozenset[str] = frozenset()

    def decided(self, reason: str) -> None:
        """Count a dispatch decision for it."""
        if self._ledger is not None:
            self._ledger.metrics.decided(self._model, reason)

    def waits(self, seconds: float) -> None:
        """Record when dispatch expects capacity for it."""
        if self._ledger is not None:
            self._ledger.waits.expect(self._model, seconds)

    def sent(self, replica_id: str) -> None:
        """Record the replica that has it now."""
        self._asked = replica_id

    def lost(self) -> None:
        """Record that its replica was lost, so that the next try uses another."""
        if self._asked is not None:
            self.failed |= {self._asked}


def tries_of(arguments: Sequence[Any], model: str = "") -> Tries:
    """Return the `tries` in a call's arguments; an unshared one if the call is not an ingress's."""
    carried = (getattr(argument, "tries", None) for argument in arguments)
    return next((tries for tries in carried if isinstance(tries, Tries)), Tries(model))
