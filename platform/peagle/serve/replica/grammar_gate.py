"""Admits a grammar to an engine only after a trial compilation within limits, in a separate process.

The engine ends a request whose grammar becomes slow later; the grammar then counts as failed.
"""

import asyncio
import functools
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from http import HTTPStatus
from typing import Any

from vllm.exceptions import GracefulHTTPError, VLLMValidationError
from vllm.v1.structured_output.backend_types import StructuredOutputOptions
from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
from vllm.v1.structured_output.request import get_structured_output_key
from vllm.v1.structured_output.utils import (
    choice_as_grammar,
    convert_lark_to_ebnf,
    grammar_is_likely_lark,
    maybe_wrap_mistral_common_tokenizer,
)

from peagle.api.api_settings import GrammarSettings
from peagle.api.openai_errors import GRAMMAR
from peagle.engine.grammars.mask_times import SLOW_GRAMMAR
from peagle.engine.grammars.trials import Grammar, Trials, slow_refusal
from peagle.errors import OverloadedError

Generate = Callable[..., AsyncGenerator[Any, None]]


class GrammarGate:
    """Admits requests to an engine: tries their grammars and runs vLLM's validation outside the event loop.

    Attributes:
        slow: Number of requests that the engine ended because their grammars had become slow.
    """

    def __init__(self, client: Any, settings: GrammarSettings) -> None:
        """Args:
        client: vLLM's `AsyncLLM`, whose `generate` is wrapped.
        settings: Limits of a compilation.
        """
        self._config = client.vllm_config
        self._tokenizer = client.tokenizer
        self._mask_s_max = settings.max_mask_s
        self.slow = 0
        self._trials = self._make_trials(settings)
        if self._trials is not None:
            self._trials.start()
        client.generate = self._admitting(client.generate)

    def close(self) -> None:
        """End the trial process."""
        if self._trials is not None:
            self._trials.close()

    def _make_trials(self, settings: GrammarSettings) -> Trials | None:
        """Return None if xgrammar compiles no grammar: guidance compiles as it generates, within its own limits."""
        chosen = self._config.structured_outputs_config
        if chosen.backend != "xgrammar" or self._tokenizer is None:
            return None
        # Made as in the engine core, so that the trial compiles the same grammar.
        backend = XgrammarBackend(
            self._config,
            tokenizer=maybe_wrap_mistral_common_tokenizer(self._tokenizer),
            vocab_size=self._config.model_config.get_vocab_size(),
        )
        return Trials(
            backend.compiler.compile_regex("a").tokenizer_info.serialize_json(),
            timeout_s=settings.compile_timeout_s,
            memory_bytes=settings.compile_memory_bytes,
            mask_s_max=settings.max_mask_s,
            any_whitespace=not chosen.disable_any_whitespace,
        )

    def _admitting(self, generate: Generate) -> Generate:
        @functools.wraps(generate)
        def admitting(prompt: Any, sampling_params: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            if getattr(sampling_params, "structured_outputs", None) is None:
                return generate(prompt, sampling_params, *args, **kwargs)
            return self._after_trial(generate, prompt, sampling_params, *args, **kwargs)

        return admitting

    async def _after_trial(
        self, generate: Generate, prompt: Any, params: Any, *args: Any, **kwargs: Any
    ) -> AsyncGenerator[Any, None]:
        grammar = None
        if self._trials is not None:
            grammar = await asyncio.to_thread(grammar_of, params.structured_outputs)
            if grammar is not None:
                await _admit(self._trials, grammar)
        # vLLM would run this, which parses the grammar, in the event loop.
        await asyncio.to_thread(
            params._validate_structured_outputs,
            self._config.model_config,
            self._config.structured_outputs_config,
            self._tokenizer,
        )
        async with aclosing(generate(prompt, params, *args, **kwargs)) as outputs:
            async for output in outputs:
                if any(each.stop_reason == SLOW_GRAMMAR for each in output.outputs):
                    raise VLLMValidationError(self._slow_refusal(grammar), parameter=GRAMMAR)
                yield output

    def _slow_refusal(self, grammar: Grammar | None) -> str:
        """Count a request that the engine ended, and refuse its grammar from now on."""
        self.slow += 1
        refusal = slow_refusal(self._mask_s_max)
        if self._trials is not None and grammar is not None:
            self._trials.refuse(grammar, refusal)
        return refusal


async def _admit(trials: Trials, grammar: Grammar) -> None:
    """Try a grammar. Refusals are raised as vLLM's own errors, which it also reports in streams."""
    try:
        refusal = await trials.refusal(grammar)
    except OverloadedError as error:
        raise GracefulHTTPError(error.message, HTTPStatus.TOO_MANY_REQUESTS) from None
    if refusal is not None:
        raise VLLMValidationError(refusal, parameter=GRAMMAR)


def grammar_of(outputs: Any) -> Grammar | None:
    """Return the grammar that xgrammar compiles for vLLM's parameters; None if it is invalid or needs no trial."""
    kind, text = get_structured_output_key(outputs)
    match kind:
        case StructuredOutputOptions.JSON_OBJECT:
            return None
        case StructuredOutputOptions.CHOICE:
            choices = json.loads(text)
            valid = isinstance(choices, list) and all(isinstance(choice, str) for choice in choices)
            return Grammar("grammar", choice_as_grammar(choices)) if valid else None
        case StructuredOutputOptions.GRAMMAR if grammar_is_likely_lark(text):
            try:
                return Grammar("grammar", convert_lark_to_ebnf(text))
            except ValueError:
                return None
        case _:
            return Grammar(kind.name.lower(), text)
