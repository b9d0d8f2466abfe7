"""Chooses the replica for a request, by a policy of the table; the default expects the earliest finish.

A process keeps one `Dispatcher` for each model. The dispatcher is told the members of the fleet and their reports. It
answers each request with `Route` or `Shed`; both hold the reason and what was weighed. `decide` is the rule itself.
"""

from peagle.router.dispatch.board import Board, DispatcherReport, FleetNews
from peagle.router.dispatch.decision import LIMITS, Limits, Route, Shed, ShedReason, decide
from peagle.router.dispatch.dispatcher import Dispatcher
from peagle.router.dispatch.draft_record import EndedDrafts
from peagle.router.dispatch.fleet import Fleet
from peagle.router.dispatch.homes import Homes, affinity_key
from peagle.router.dispatch.in_flight import InFlight
from peagle.router.dispatch.policies import POLICIES
from peagle.router.dispatch.policies.soonest import SOONEST
from peagle.router.dispatch.policy import Candidate, Exclusion, HomeUse, Policy, RouteReason, Weighed
from peagle.router.dispatch.reasons import DECISION_REASONS

__all__ = [
    "DECISION_REASONS",
    "LIMITS",
    "POLICIES",
    "SOONEST",
    "Board",
    "Candidate",
    "Dispatcher",
    "DispatcherReport",
    "EndedDrafts",
    "Exclusion",
    "Fleet",
    "FleetNews",
    "HomeUse",
    "Homes",
    "InFlight",
    "Limits",
    "Policy",
    "Route",
    "RouteReason",
    "Shed",
    "ShedReason",
    "Weighed",
    "affinity_key",
    "decide",
]
