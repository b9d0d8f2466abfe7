"""Passes a request's flow from the replica's call to the scheduler, through vLLM's handlers."""

import functools
from collections.abc import AsyncGenerator, Callable
from contextvars import ContextVar
from dataclasses import astuple
from typing import Any

from peagle.router.fairness.step_sharing import Flow

FLOW: ContextVar[Flow | None] = ContextVar("flow of the current request", default=None)
"""Flow of the request that vLLM's handler runs for in this context."""


# Parameters have vLLM's names, which differ between the two functions.


def named(generate: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
    """Wrap an engine client's `generate` so that its requests carry `FLOW` to the scheduler."""

    @functools.wraps(generate)
    def asked(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        sampling_params.extra_args = _with_flow(sampling_params.extra_args)
        return generate(prompt, sampling_params, *args, **kwargs)

    return asked


def named_encode(encode: Callable[..., AsyncGenerator[Any, None]]) -> Callable[..., AsyncGenerator[Any, None]]:
    """Wrap an engine client's `encode` in the same way."""

    @functools.wraps(encode)
    def asked(prompt: Any, pooling_params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        pooling_params.extra_kwargs = _with_flow(pooling_params.extra_kwargs)
        return encode(prompt, pooling_params, *args, **kwargs)

    return asked


def _with_flow(extra: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return a request's extra parameters with the flow of `FLOW` added."""
    # Imported here: only a replica has vLLM.
    from peagle.engine.shared_steps import FLOW_ARG

    flow = FLOW.get()
    return extra if flow is None else {**(extra or {}), FLOW_ARG: list(astuple(flow))}
