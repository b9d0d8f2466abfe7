"""The field `speculation` of a request that generates: the largest draft depth for this request.

Every model accepts every bound. A bound above the deployment's K, or on a model without a drafter, has no effect.
"""

from reprlib import repr as shortened
from typing import Any

from peagle.api.bounds.field_path import spell
from peagle.errors import RequestError

FIELD = "speculation"
DEPTH_MAX_ARG = "peagle_depth_max"
"""Key of the request's bound in vLLM's `SamplingParams.extra_args`."""


def take_depth_max(data: dict[str, Any]) -> int | None:
    """Remove `speculation` from a parsed body; return its `depth_max`, None if no bound is requested.

    Raises RequestError if it is not an object, has an unknown field, or `depth_max` is not an integer of at least 0.
    """
    speculation = data.pop(FIELD, None)
    if speculation is None:
        return None
    if not isinstance(speculation, dict):
        raise RequestError(f'{FIELD}: must be an object such as {{"depth_max": 0}}.', param=FIELD)
    for name in speculation:
        if name != "depth_max":
            param = spell((FIELD, name))
            raise RequestError(
                f"{param} is not supported: {FIELD} takes depth_max.", param=param, code="unsupported_parameter"
            )
    bound = speculation.get("depth_max")
    if bound is None or (type(bound) is int and bound >= 0):
        return bound
    param = f"{FIELD}.depth_max"
    raise RequestError(
        f"{param}: must be an integer of at least 0 (0 disables drafting for this request), not {shortened(bound)}.",
        param=param,
    )
