"""The home of the request's prefix as long as that may take more; otherwise the least loaded replica."""

from dataclasses import replace

from peagle.router.dispatch.policies.least_loaded import LEAST_LOADED
from peagle.router.dispatch.policy import HomeUse

PREFIX_AFFINITY = replace(
    LEAST_LOADED,
    name="prefix-affinity",
    description="the replica that the request's prefix belongs to while that may take more, or else the least loaded",
    homes=HomeUse.FIRST,
)
