"""The field `speculation` of a completion or chat request: how much may be drafted for it.

Any model takes any bound. One above the deployment's own K, or on a model without a drafter, changes nothing: less than
that is drafted there already, and 0 is what a model without a drafter does anyway.
"""

from reprlib import repr as shortened
from typing import Any

from peagle.api.bounds.field_path import spell
from peagle.errors import RequestError

FIELD = "speculation"
DEPTH_MAX_ARG = "peagle_depth_max"
"""Where a request's bound travels: in vLLM's `SamplingParams.extra_args`, by this name."""


def take_depth_max(data: dict[str, Any]) -> int | None:
    """Take `speculation` out of a parsed body; return its `depth_max`, None where no bound is asked for.

    Raises RequestError where it is not an object, has an unknown field, or `depth_max` is not a whole number from 0.
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
        f"{param}: must be a whole number from 0 (0 drafts nothing for this request), not {shortened(bound)}.",
        param=param,
    )
