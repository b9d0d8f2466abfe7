"""The home of the request's prefix while it may take more; otherwise the least loaded replica."""

from dataclasses import replace

from peagle.router.dispatch.policies.least_loaded import LEAST_LOADED
from peagle.router.dispatch.policy import HomeUse

PREFIX_AFFINITY = replace(
    LEAST_LOADED,
    name="prefix-affinity",
    description="the home of the request's prefix while it may take more, otherwise the least loaded replica",
    homes=HomeUse.FIRST,
)
