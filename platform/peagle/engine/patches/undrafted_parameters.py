"""Serves requests with `min_p` or `logit_bias` on an engine with a drafter, without drafts for them.

vLLM refuses both if it speculates, because its rejection sampler applies neither to draft positions. It samples the
token after the drafts, for a request without drafts its only token, as it does without a drafter. So a request with a
bound of 0 gets exactly the output of an engine without a drafter, if the two processors exist.
"""

import functools
from typing import Any

from peagle.api.bounds.speculation_field import DEPTH_MAX_ARG


def accept() -> None:
    """Make this process accept such requests, with a bound of 0, instead of refusing them. Idempotent."""
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
    """Make this process's model runners build both processors despite a drafter. Idempotent."""
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
