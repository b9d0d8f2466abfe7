"""The first request of an engine, before any client's."""

from typing import Any

from peagle.config.deployment import POOLING
from peagle.errors import ConfigError

_PROMPT, _NAME = {"prompt_token_ids": [0]}, "peagle-readiness"


async def answer_once(client: Any, pools: bool) -> None:
    """Have an engine answer a request.

    Args:
        client: vLLM's `AsyncLLM`.
        pools: Whether its deployment says that it embeds or scores.

    Raises:
        ConfigError: It does, and the deployment does not say so.
    """
    from vllm import PoolingParams, SamplingParams

    if client.model_config.runner_type != POOLING:
        replies = client.generate(_PROMPT, SamplingParams(max_tokens=2, temperature=0.0), request_id=_NAME)
    elif not pools:
        problem = "the target is a model that embeds or scores text"
        fix = f"Write engine.runner: {POOLING}, or name a target that generates."
        raise ConfigError("engine.runner", None, problem, fix)
    else:
        task = client.model_config.get_pooling_task(await client.get_supported_tasks())
        replies = client.encode(_PROMPT, PoolingParams(task=task), request_id=_NAME)
    async for _ in replies:
        pass
