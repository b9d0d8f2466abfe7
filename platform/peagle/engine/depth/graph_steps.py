"""Counts the kind of CUDA graph of each step, and pads steps if only uniform batches have graphs."""

from collections import Counter
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from peagle.engine.depth.depth_bound import bound_of
from peagle.engine.patches.step_drafts import DraftTakingScheduler
from peagle.router.graphs import GraphKind


class GraphCountingScheduler(DraftTakingScheduler):
    """Counts decode steps by kind of graph, as reported by the GPU worker.

    If full graphs accept only uniform batches, one request without a draft leaves the whole step without a graph. So
    requests that rest because of a gap verify as many tokens as the others, using the drafts made from that incomplete
    cache. The target judges them as usual, so outputs do not change; their acceptance is not counted. Requests with
    their own bound keep to it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._steps_by_graph: Counter[str] = Counter()
        self._takes_uniform_only = False
        self._last: SchedulerOutput | None = None

    @property
    def steps_by_graph(self) -> dict[str, int]:
        """Decode steps by the kind of graph that they ran as; empty without CUDA graphs."""
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
        # On a CPU, or if the worker does not have this type, it is vLLM's own statistic or None.
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
        """Give requests without a draft as many draft slots as the others, if drafts stay on the device.

        Returns:
            The padded requests; empty if the step would not become uniform.
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
