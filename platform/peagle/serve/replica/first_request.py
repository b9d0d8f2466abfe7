"""Sends an engine its first requests, before any client's."""

from typing import Any

from peagle.config.deployment import POOLING
from peagle.errors import ConfigError

_PROMPT, _NAME = {"prompt_token_ids": [0]}, "peagle-readiness"
_SCHEMA = {"type": "integer"}


async def answer_once(client: Any, pools: bool) -> None:
    """Make an engine answer one plain request and one with a grammar.

    At its first grammar, an engine sets up its grammar compiler, and takes no steps for seconds.

    Args:
        client: vLLM's `AsyncLLM`.
        pools: Whether the deployment declares that the model embeds or scores.

    Raises:
        ConfigError: The model embeds or scores, but the deployment does not declare it.
    """
    from vllm import PoolingParams
    from vllm.sampling_params import StructuredOutputsParams

    if client.model_config.runner_type != POOLING:
        await _generate(client)
        if client.tokenizer is not None:
            await _generate(client, structured_outputs=StructuredOutputsParams(json=_SCHEMA))
        return
    if not pools:
        problem = "the target is a model that embeds or scores text"
        fix = f"Write engine.runner: {POOLING}, or name a target that generates."
        raise ConfigError("engine.runner", None, problem, fix)
    task = client.model_config.get_pooling_task(await client.get_supported_tasks())
    async for _ in client.encode(_PROMPT, PoolingParams(task=task), request_id=_NAME):
        pass


async def _generate(client: Any, **params: Any) -> None:
    from vllm import SamplingParams

    params = {"max_tokens": 2, "temperature": 0.0, **params}
    async for _ in client.generate(_PROMPT, SamplingParams(**params), request_id=_NAME):
        pass
