"""What steps ran as, counted where they are scheduled; and the padding of steps that only a uniform batch replays."""

from collections import Counter
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from peagle.engine.depth.depth_bound import bound_of
from peagle.engine.patches.step_drafts import DraftTakingScheduler
from peagle.router.graphs import GraphKind


class GraphCountingScheduler(DraftTakingScheduler):
    """Adds to vLLM's scheduler counts of decode steps by kind of graph, as a GPU's worker tells them.

    Where full graphs take uniform batches only, one request without a draft leaves its whole step without a graph. So
    requests that rest, as the drafter's cache has a gap, verify as many tokens as the others: what the drafter made of
    that cache. The target judges them as any others, so outputs do not change, and acceptance is not counted. Requests
    with a bound of their own keep to it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps_by_graph: Counter[str] = Counter()
        self._takes_uniform_only = False
        self._last: SchedulerOutput | None = None

    @property
    def steps_by_graph(self) -> dict[str, int]:
        """Decode steps by the kind of graph that they ran as; empty where there are no graphs at all."""
        return dict(self._steps_by_graph)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        padded = self._pad_to_uniform() if self._takes_uniform_only else []
        output = super().schedule(*args, **kwargs)
        for request in padded:
            if request.request_id not in output.num_scheduled_tokens:
                request.spec_token_ids = []
        self._last = output
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        # Of a worker whose process has no such type, and on a CPU, it is vLLM's own or nothing.
        ran_as = model_runner_output.cudagraph_stats
        if (kind := getattr(ran_as, "kind", None)) is not None:
            if not self._steps_by_graph:
                self._steps_by_graph.update(dict.fromkeys(map(str, GraphKind), 0))
            self._steps_by_graph[str(kind)] += ran_as.is_decode
            self._takes_uniform_only = ran_as.takes_uniform_only
            asked = self.vllm_config.observability_config.cudagraph_metrics
            model_runner_output.cudagraph_stats = ran_as.plain() if asked else None
        return super().update_from_output(scheduler_output, model_runner_output)

    def _pad_to_uniform(self) -> list[Any]:
        """Give requests without a draft as many places for one as all others have, where the device holds drafts.

        Returns:
            Those that had none; nobody where the step would not be uniform all the same.
        """
        last = self._last
        if last is None or not self.scheduler_config.async_scheduling:
            return []
        lengths = {len(request.spec_token_ids) for request in self.running}
        longest = max(lengths, default=0)
        if lengths != {0, longest} or not 0 < longest <= last.num_spec_tokens_to_schedule:
            return []
        without = [request for request in self.running if not request.spec_token_ids]
        if any(each.is_prefill_chunk or bound_of(each) is not None for each in without):
            return []
        if not last.num_scheduled_tokens.keys() >= {each.request_id for each in without}:
            return []
        for request in without:
            request.spec_token_ids = [-1] * longest
        return without
