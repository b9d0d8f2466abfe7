"""Ends requests whose grammar has become slow, so that they do not delay others. Importing this module imports vLLM.

Every request of a step waits for the masks of all. The limit applies to processor time, to which a busy machine adds
nothing. Reading it takes a system call, so a grammar is timed by wall clock until one step exceeds the limit.
"""

from collections import deque
from collections.abc import Callable
from time import perf_counter, thread_time
from typing import Any, TypeVar

from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import FinishReason
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

from peagle.engine.arguments import MASK_S_MAX, settings_of
from peagle.engine.grammars.mask_times import RECENT, SLOW_GRAMMAR, drafts_within, is_slow

T = TypeVar("T")


class WatchedGrammar(StructuredOutputGrammar):  # type: ignore[misc]  # vLLM ships no types
    """One request's grammar, timed. Used by one thread at a time."""

    def __init__(self, grammar: StructuredOutputGrammar, token_s_max: float) -> None:
        self._grammar, self._token_s_max = grammar, token_s_max
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._clock = perf_counter
        self._seconds, self._masks = 0.0, 0

    def is_slow_after_step(self) -> bool:
        """Close one step's measurement; return whether the grammar has become slow."""
        if self._masks:
            token_s = self._seconds / self._masks
            if token_s > self._token_s_max and self._clock is perf_counter:
                self._clock = thread_time
            else:
                self._recent.append(token_s)
            self._seconds, self._masks = 0.0, 0
        return is_slow(self._recent, self._token_s_max)

    def fill_bitmask(self, bitmask: Any, batch_index: int) -> None:
        self._masks += 1
        self._timed(self._grammar.fill_bitmask, bitmask, batch_index)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        return bool(self._timed(self._grammar.accept_tokens, request_id, tokens))

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        if self._recent:
            tokens = tokens[: drafts_within(self._recent[-1], self._token_s_max)]
        return self._timed(self._grammar.validate_tokens, tokens)

    def rollback(self, num_tokens: int) -> None:
        self._timed(self._grammar.rollback, num_tokens)

    def is_terminated(self) -> bool:
        return bool(self._grammar.is_terminated())

    def reset(self) -> None:
        self._grammar.reset()

    def _timed(self, call: Callable[..., T], *args: Any) -> T:
        clock = self._clock
        began_s = clock()
        result = call(*args)
        self._seconds += clock() - began_s
        return result


class GrammarWatchingScheduler(Scheduler):  # type: ignore[misc]
    """Adds the watch to the scheduler that follows it in the method resolution order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        token_s_max: float = settings_of(self.vllm_config)[MASK_S_MAX]
        create = self.structured_output_manager._create_grammar
        self.structured_output_manager._create_grammar = lambda request: WatchedGrammar(create(request), token_s_max)
        self._slow: set[str] = set()

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        output = super().get_grammar_bitmask(scheduler_output)
        for request_id in output.structured_output_request_ids if output is not None else ():
            if self.requests[request_id].structured_output_request.grammar.is_slow_after_step():
                self._slow.add(request_id)
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        # vLLM ends these with an error, like requests whose grammars do not compile, but gives no reason.
        self.grammar_compile_error_reqs |= self._slow
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for each in outputs.values() if self._slow else ():
            for output in each.outputs:
                # Some may have finished normally in this step.
                if output.request_id in self._slow and output.finish_reason == FinishReason.ERROR:
                    output.stop_reason = SLOW_GRAMMAR
        self._slow.clear()
        return outputs
