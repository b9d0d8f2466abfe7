"""`min_p` and `logit_bias` beside a drafter: requests that have one are served, and nothing is drafted for them.

vLLM refuses both wherever it speculates, because its rejection sampler applies neither to the positions of drafts. It
samples the token behind the drafts, of a request without any its only one, as it samples without a drafter. So a
request with a bound of 0 gets exactly what an engine without a drafter gives it, if the two processors are there.
"""

import functools
from typing import Any

from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG


def accept() -> None:
    """Have this process take such requests, with a bound of 0, in place of refusing them; again, it changes nothing."""
    from vllm.sampling_params import SamplingParams

    validate = SamplingParams._validate_spec_decode
    if hasattr(validate, "__wrapped__"):
        return

    @functools.wraps(validate)
    def bound(params: Any, speculative_config: Any) -> None:
        # vLLM has set the `min_p` of a greedy request to 0.
        if speculative_config is not None and (params.min_p or params.logit_bias):
            params.extra_args = {**(params.extra_args or {}), DEPTH_MAX_ARG: 0}
        else:
            validate(params, speculative_config)

    SamplingParams._validate_spec_decode = bound


def apply() -> None:
    """Have model runners of this process build both processors beside a drafter; again, it changes nothing."""
    from vllm.v1.sample.logits_processor import BUILTIN_LOGITS_PROCESSORS, LogitsProcessors
    from vllm.v1.worker import gpu_model_runner

    build = gpu_model_runner.build_logitsprocs
    if hasattr(build, "__wrapped__"):
        return

    @functools.wraps(build)
    def build_all(config: Any, device: Any, is_pin_memory: bool, is_pooling_model: bool, custom: Any = ()) -> Any:
        if config.speculative_config is None or is_pooling_model or custom:
            return build(config, device, is_pin_memory, is_pooling_model, custom)
        return LogitsProcessors(kind(config, device, is_pin_memory) for kind in BUILTIN_LOGITS_PROCESSORS)

    gpu_model_runner.build_logitsprocs = build_all
