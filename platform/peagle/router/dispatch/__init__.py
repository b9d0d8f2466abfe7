"""Which replica takes a request: the one that is expected to finish it first.

A process keeps one `Dispatcher` for each model. It is told who is in the fleet and what they report, and answers each
request with `Route` or `Shed`, both of which say why and what was weighed. `decide` is the rule itself.
"""

from peagle.router.dispatch.board import Board, DispatcherReport, FleetNews
from peagle.router.dispatch.decision import LIMITS, Limits, Route, RouteReason, Shed, ShedReason, decide
from peagle.router.dispatch.dispatcher import Dispatcher
from peagle.router.dispatch.fleet import Fleet
from peagle.router.dispatch.homes import Homes, affinity_key
from peagle.router.dispatch.in_flight import InFlight
from peagle.router.dispatch.profile import SOONEST, Candidate, Exclusion, Profile, Weighed

__all__ = [
    "LIMITS",
    "SOONEST",
    "Board",
    "Candidate",
    "Dispatcher",
    "DispatcherReport",
    "Exclusion",
    "Fleet",
    "FleetNews",
    "Homes",
    "InFlight",
    "Limits",
    "Profile",
    "Route",
    "RouteReason",
    "Shed",
    "ShedReason",
    "Weighed",
    "affinity_key",
    "decide",
]
