"""The table of dispatch policies. A new policy is a file here and a row below; nothing else names it."""

from collections.abc import Mapping

from peagle.router.dispatch.policies.by_acceptance import BY_ACCEPTANCE
from peagle.router.dispatch.policies.least_loaded import LEAST_LOADED
from peagle.router.dispatch.policies.prefix_affinity import PREFIX_AFFINITY
from peagle.router.dispatch.policies.soonest import SOONEST
from peagle.router.dispatch.policy import Policy

POLICIES: Mapping[str, Policy] = {
    SOONEST.name: SOONEST,
    LEAST_LOADED.name: LEAST_LOADED,
    PREFIX_AFFINITY.name: PREFIX_AFFINITY,
    BY_ACCEPTANCE.name: BY_ACCEPTANCE,
}
