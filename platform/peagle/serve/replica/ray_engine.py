"""Ray Serve LLM's engine, with fixes for Ray 2.60 and vLLM 0.29. Importing this module imports vLLM."""

import logging
import os
from collections.abc import AsyncGenerator
from typing import Any

from ray.llm._internal.serve.engines.vllm.vllm_engine import VLLMEngine

from peagle import tracing
from peagle.engine.checks.sampling_checks import undrafted_by
from peagle.engine.patches.patch_table import install_patches
from peagle.serve.replica.asking_flow import named, named_encode
from peagle.serve.replica.draft_usage import count_drafts, tell_drafts
from peagle.serve.replica.relayed_apis import ask_count, ask_messages, ask_pooled, ask_responses
from peagle.upstream import Process

# A child of Ray Serve's logger, as in the replica.
logger = logging.getLogger("ray.serve.replica")

EXECUTOR = "distributed_executor_backend"


class PeagleEngine(VLLMEngine):  # type: ignore[misc]  # Ray ships no types
    """An engine that uses the configured executor, finds vLLM's tokenizer endpoints, and traces requests.

    If it drafts, answers report their draft counts.
    """

    def _prepare_engine_config(self, callback_ctx: Any) -> Any:
        arguments, frontend, config = super()._prepare_engine_config(callback_ctx)
        if executor := self.llm_config.engine_kwargs.get(EXECUTOR):
            # On CPU, Ray overwrites it with its own choice.
            arguments.distributed_executor_backend = executor
            config.parallel_config.distributed_executor_backend = executor
        return arguments, frontend, config

    async def start(self) -> None:
        await super().start()
        self._engine_client.generate = named(self._engine_client.generate)
        self._engine_client.encode = named_encode(self._engine_client.encode)
        install_patches(Process.FRONT)
        if self._engine_client.vllm_config.speculative_config is not None:
            if (said := undrafted_by(self._engine_client.model_config.get_diff_sampling_param())) is not None:
                logger.warning(said)
            self._engine_client.generate = count_drafts(self._engine_client.generate)
        if tracing.is_on():
            # As an engine argument it would make vLLM set up a second exporter, which gets nothing next to Serve's.
            self._engine_client.observability_config.otlp_traces_endpoint = os.environ.get(tracing.ENDPOINT, "")
            self._engine_client.output_processor.tracing_enabled = True
        if getattr(self, "_oai_serving_tokenization", None) is None:
            # Ray looks it up under its name before vLLM 0.29.
            self._oai_serving_tokenization = getattr(self._app_state, "serving_tokenization", None)

    def chat(self, *args: Any) -> AsyncGenerator[Any, None]:
        return tell_drafts(super().chat(*args))

    def completions(self, *args: Any) -> AsyncGenerator[Any, None]:
        return tell_drafts(super().completions(*args))

    def responses(self, *args: Any) -> AsyncGenerator[Any, None]:
        return tell_drafts(ask_responses(self._app_state.openai_serving_responses, *args))

    def messages(self, *args: Any) -> AsyncGenerator[Any, None]:
        return tell_drafts(ask_messages(self._app_state.anthropic_serving_messages, *args))

    def count_tokens(self, *args: Any) -> AsyncGenerator[Any, None]:
        return ask_count(self._app_state.anthropic_serving_messages, *args)

    def embeddings(self, *args: Any) -> AsyncGenerator[Any, None]:
        # Ray's own method parses every number of an answer in the event loop.
        return ask_pooled(self._app_state.serving_embedding, *args)

    def score(self, *args: Any) -> AsyncGenerator[Any, None]:
        return ask_pooled(self._app_state.serving_scores, *args)
