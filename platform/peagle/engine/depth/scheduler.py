"""Live depth: vLLM's scheduler, verifying only the first K tokens of each draft.

The drafter drafts `num_speculative_tokens` (Kmax) every step, whatever K is, unless `drafts_to_depth` is set. Before
each step this scheduler cuts every request's draft to the K that the depth table holds for the step's batch size, so
the target verifies K + 1 positions. Everything else is vLLM's own: it already schedules requests with fewer draft
tokens than Kmax if a token budget or the end of the context leaves no room. So outputs do not change, K may differ by
request, and no worker is patched.

- A table may define K as an average (`by_request`). A step then verifies in total as many draft tokens as with K for
  each request, namely those likeliest to be accepted according to `DraftChances`. Outputs stay the target's.
- The batch size that selects K is the number of running requests when the step is scheduled. This excludes requests
  admitted in the same step, which have no draft to cut. So the batch size is exact for decode-only steps.
- KV slots are reserved for Kmax drafts whatever K is, since the drafter may write that many.
- Grammars: vLLM validates a draft before this cut and masks only what is scheduled after it.
- Asynchronous scheduling (GPU): a draft is a list of placeholders here. The worker reads the first K tokens of each
  request's row in the drafter's output. Rows are as long as the draft was, so the cut works the same. If a step drafts
  Kmax to show acceptance beyond K, the worker reports its drafts to the scheduler one step later. They can then be
  compared with the target's tokens.
- K = 0 verifies no drafts. Without `skips_drafter` the drafter still runs and keeps its cache complete, so K can rise
  at any step. With `skips_drafter`, a step whose requests all have K = 0 skips the drafter. These requests then have a
  gap in the drafter's cache and stay at K = 0 until they end, while new ones draft again.
- With `skips_drafter`, the drafter runs over prompts only if K is above 0 at the batch size to come. This is the number
  of running requests plus those that can be admitted, or the size of the largest recent batch if that is larger: an
  ended request is usually replaced, but a moment later. Requests that draft do not use prefix-cache blocks with a gap.
- With `drafts_to_depth` a step drafts what the next step will verify with the current table and batch. One step in
  eight drafts Kmax. The tokens beyond K, the cut tail, are not verified but compared with what the target emits later,
  which shows acceptance beyond K. After K rises, one step still verifies drafts of the lower K. The worker is told
  which requests draft less or nothing (`tell_own_depths`).
- A request may have its own bound of K (`depth_bound.py`), which applies from its first draft. Drafts cut by a bound
  are not scored, since no K of the table would have verified them. A request with bound 0 does not draft, like a
  request with a gap; such requests are called rested. If all requests of a decode-only step are rested, the drafter is
  skipped. It still runs over prompts, for later requests that find them in the prefix cache.
- On a GPU every K of the ladder has full CUDA graphs (`patches/rung_graphs.py`); the kind of graph of each step is
  counted.
"""

from collections import deque
from dataclasses import asdict, dataclass
from itertools import chain, islice
from time import perf_counter
from typing import Any

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from peagle.engine.arguments import LIVE_DEPTH, settings_of
from peagle.engine.depth.depth_bound import bound_of, tell_own_depths
from peagle.engine.depth.depth_table import next_table
from peagle.engine.depth.draft_chances import DraftChances
from peagle.engine.depth.drafter_gaps import DrafterGaps
from peagle.engine.depth.graph_steps import GraphCountingScheduler
from peagle.engine.depth.recent_batches import RecentBatches
from peagle.engine.depth.step_sums import CellSums, CutDraft, CutTails, PromptCellSums, PromptSums, RowSums, StepSums
from peagle.engine.patches.step_drafts import ROWS, TELLS
from peagle.router.depth.draft_sharing import depth_drafted, expected_right, shared
from peagle.router.snapshot import DepthTable

# One in this many drafting steps drafts Kmax whatever K is, so that the cut tails show acceptance beyond K.
_WHOLE_DRAFT_EVERY = 8


@dataclass(frozen=True, slots=True)
class ScheduledStep:
    """A step in progress, with `cell` if it is decode-only, else `prompts`.

    `rested` are its requests with a gap, or with a bound of 0.
    """

    output: SchedulerOutput
    scheduled_s: float
    cell: CellSums | None
    prompts: PromptCellSums | None
    rested: frozenset[str]


class LiveDepthScheduler(GraphCountingScheduler):
    """Adds a depth table, replaceable between steps, and sums over decode-only steps to vLLM's scheduler.

    A step's seconds run from the end of the previous step to its own end (the return of `update_from_output`), or from
    its own scheduling if no work was left. So the seconds of consecutive steps add up to wall time, including the
    drafter; overlapped steps count once, and time without requests does not count. A step whose requests have all ended
    meanwhile is not counted.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = settings_of(self.vllm_config)[LIVE_DEPTH]
        self._table = DepthTable(version=0, depths=(settings["depth_static"],))
        self._sums = StepSums(self.num_spec_tokens)
        self._prompts = PromptSums()
        self._rows = RowSums()
        self._chances = DraftChances(self.num_spec_tokens)
        self._tails = CutTails(self._chances)
        # The drafter's probability of each token of its draft, by request.
        self._confidences: dict[str, list[float]] = {}
        self._steps_unreported = 0
        self._bounds: dict[str, int] = {}  # bounds of running requests
        # Steps overlap under asynchronous scheduling and pipeline parallelism; they end in the order of scheduling.
        self._steps: deque[ScheduledStep] = deque(maxlen=self.vllm_config.max_concurrent_batches + 1)
        self._ended_s = 0.0
        self._had_more = False
        self._batches = RecentBatches()
        self._may_skip: bool = settings["skips_drafter"]
        self._drafts_to_depth: bool = settings["drafts_to_depth"]
        # With random acceptance a draft's tokens carry no information, so tails are not scored.
        self._scores_tails: bool = self.vllm_config.speculative_config.rejection_sample_method != "synthetic"
        self._drafting_steps = 0
        self._gaps = DrafterGaps(self.kv_cache_manager)
        self._drafts_over_prompts = False
        self._pads = False

    def set_depths(self, version: int, depths: list[int], by_request: bool = False) -> None:
        """Replace the table; the next step uses it.

        Raises:
            ConfigError: See `next_table`.
        """
        self._table = next_table(
            version, depths, self._table, self.num_spec_tokens, self.max_num_running_reqs, by_request=by_request
        )

    def step_stats(self, since: int = 0) -> dict[str, Any]:
        """Return the data for `live_depth.StepStatsReader`; only cells that changed after reading number `since`."""
        reading, cells = self._sums.read(since)
        return {
            "reading": reading,
            "version": self._table.version,
            "depths": list(self._table.depths),
            "by_request": self._table.by_request,
            "depth_max": self.num_spec_tokens,
            "cells": cells,
            "prompts": self._prompts.plain(),
            "graphs": self.steps_by_graph,
            "rows": asdict(self._rows),
        }

    @property
    def keeps_nothing(self) -> bool:
        """Whether no request or step is remembered, as after all have ended."""
        return not (self._tails or self._steps or self._gaps or self._chances or self._confidences)

    def set_pause_state(self, pause_state: Any) -> None:
        self._had_more = False  # The engine may now wait although work is left.
        super().set_pause_state(pause_state)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> bool:
        was_reset: bool = super().reset_prefix_cache(*args, **kwargs)
        if was_reset:
            self._gaps.forget()
        return was_reset

    def schedule(self, throttle_prefills: bool = False) -> SchedulerOutput:
        scheduled_s = perf_counter()
        depth = self._table.depth_at(len(self.running))
        prompts_depth = self._depth_to_come(scheduled_s)
        self._drafts_over_prompts = self._may_skip and prompts_depth > 0
        if self._drafts_over_prompts and (self.waiting or self.skipped_waiting):
            self._gaps.remember()
        decoding = {request.request_id for request in self.running if not request.is_prefill_chunk}
        prefilling = len(decoding) < len(self.running)
        depths, expected = self._depths_of_drafts(depth)
        whole_drafts = self._cut_drafts(depths)
        # vLLM pads a new request with Kmax empty drafts. If K is lower, they would only add positions to verify.
        self._pads = depth == self.num_spec_tokens
        self.pad_with_empty_drafts(self._pads)
        output = super().schedule(throttle_prefills)
        self._restore_unscheduled(whole_drafts, output)
        admits = output.scheduled_new_reqs or output.scheduled_cached_reqs.resumed_req_ids
        cell = prompts = None
        rested: frozenset[str] = frozenset()
        if output.num_scheduled_tokens:
            self._batches.add(scheduled_s, len(output.num_scheduled_tokens))
            decodes_only = not prefilling and not admits
            rested = self._gaps.among(output.num_scheduled_tokens)
            if decodes_only:
                undrafted = output.num_scheduled_tokens.keys() - output.scheduled_spec_decode_tokens.keys()
                rested |= {request_id for request_id in undrafted if self._bounds.get(request_id) == 0}
            none_drafts = len(rested) == len(output.num_scheduled_tokens)
            if self._may_skip and (none_drafts or (depth if decodes_only else prompts_depth) == 0):
                self._skip_drafter(output)
            if self._drafts_to_depth and output.num_spec_tokens_to_schedule:
                self._draft_to_depth(output)
            tell_own_depths(output, self.requests, self._gaps.among(output.num_scheduled_tokens))
            if decodes_only:
                cell = self._sums.cell(len(output.num_scheduled_tokens), 0 if none_drafts else depth)
                cell.add_expected(expected)
                # With shared drafts, a draft that was cut to no tokens still counts as a draft.
                cell.drafts += [*depths.values()].count(0) if depth else 0
                cell.spared += sum(depth - bound for bound in self._bounds.values() if 0 < bound < depth)
                self._keep_tails(whole_drafts, output, cell)
            else:
                prompts = self._count_prompts(output, decoding)
        self._steps.append(ScheduledStep(output, scheduled_s, cell, prompts, rested))
        return output

    def update_from_output(self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput) -> Any:
        step = self._step_of(scheduler_output)
        cell = step.cell if step is not None else None
        alive: list[str] = []
        if step is not None and cell is not None:
            alive = [request_id for request_id in scheduler_output.num_scheduled_tokens if self._is_alive(request_id)]
            # Count before vLLM cuts the sampled tokens at a stop: acceptance is the target's verdict on the draft.
            self._count_drafts(step, cell, model_runner_output)
        self._rows.add(scheduler_output.total_num_scheduled_tokens, *getattr(model_runner_output, ROWS, (0, 0)))
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        for request_id in scheduler_output.num_scheduled_tokens if self._tails else ():
            if (request := self.requests.get(request_id)) is not None:
                self._tails.settle(request_id, request.all_token_ids)
        ended_s = perf_counter()
        if step is not None:
            seconds = ended_s - (self._ended_s if self._had_more else max(self._ended_s, step.scheduled_s))
            if cell is not None and alive:
                tokens = sum(len(one.new_token_ids) for all_ in outputs.values() for one in all_.outputs)
                cell.add_step(seconds, tokens, len(step.rested.intersection(alive)), cell.batch_size - len(alive))
            if step.prompts is not None:
                step.prompts.seconds = seconds
                self._prompts.add(step.prompts)
        self._ended_s = ended_s
        self._had_more = self.has_unfinished_requests()
        return outputs

    def _free_request(self, request: Request, *args: Any, **kwargs: Any) -> Any:
        """Every way for a request to end passes through here: stop, length, abort, error."""
        self._tails.finish(request.request_id, request.all_token_ids)
        self._confidences.pop(request.request_id, None)
        self._chances.forget(request.request_id)
        prompt_tokens = min(request.num_prompt_tokens, request.num_computed_tokens)  # less if it ended during prefill
        self._prompts.end(request.request_id, prompt_tokens, request.num_output_tokens)
        return super()._free_request(request, *args, **kwargs)

    def _free_request_blocks(self, request: Request) -> None:
        """A request has ended, or restarts from its prompt."""
        self._gaps.close(request)
        super()._free_request_blocks(request)

    def _get_local_prefix_cache_hit(self, request: Request) -> Any:
        """vLLM calls this before it admits a request."""
        if self._drafts_over_prompts:
            self._gaps.uncache_for(request)
        # Empty drafts would also exceed the request's bound.
        self.pad_with_empty_drafts(self._pads and bound_of(request) is None)
        return super()._get_local_prefix_cache_hit(request)

    def _depth_to_come(self, now_s: float) -> int:
        """Return K for the batch after waiting requests are admitted, limited by places and KV cache blocks.

        Prefix-cache hits need no new blocks and are ignored here, so more requests may be admitted. The batch size is
        at least that of the largest recent batch: if many requests end at once, not all of their successors are waiting
        yet.
        """
        batch_size = len(self.running)
        places = self.max_num_running_reqs - batch_size
        blocks = self.kv_cache_manager.block_pool.get_num_free_blocks()
        sizes = [manager.block_size for manager in self.kv_cache_manager.coordinator.single_type_managers]
        for request in islice(chain(self.skipped_waiting, self.waiting), places):
            blocks -= sum(-(-request.num_tokens // size) for size in sizes)
            if blocks < 0:
                break
            batch_size += 1
        return self._table.depth_at(max(batch_size, self._batches.largest(now_s, self._ended_s)))

    def _draft_to_depth(self, output: SchedulerOutput) -> None:
        """Draft as much as the next step will verify if no request ends; every few steps draft Kmax."""
        self._drafting_steps += 1
        batch_size = len(self.running)
        depth = self._table.depth_at(batch_size)
        if self._drafting_steps % _WHOLE_DRAFT_EVERY == 0:
            depth = self.num_spec_tokens
            if self._scores_tails:
                setattr(output, TELLS, True)
        output.num_spec_tokens_to_schedule = max(1, self._drafted_for(depth) if batch_size > 1 else depth)

    def _skip_drafter(self, output: SchedulerOutput) -> None:
        """Skip the drafter, since no drafts will be used; the step's requests get a gap in the drafter's cache."""
        output.num_spec_tokens_to_schedule = 0
        for request_id, tokens in output.num_scheduled_tokens.items():
            request = self.requests[request_id]
            self._gaps.open(request, self._drafter_has(request, request.num_computed_tokens - tokens))

    def _drafter_has(self, request: Request, computed: int) -> int:
        """Return how many tokens are certainly in the drafter's cache; `computed` is the count before this step."""
        return computed

    def take_confidences(self, confidences: dict[str, list[float]]) -> None:
        # Requests that have ended by this step draft no more.
        self._confidences = {name: told for name, told in confidences.items() if name in self.requests}

    def _depths_of_drafts(self, depth: int) -> tuple[dict[str, int], list[tuple[float, float]]]:
        """Return how many tokens of each draft to verify, by request id, and the expected accepted drafts of each K.

        The latter, without and with sharing, is reported only in some steps; else it is empty. See `equal_right` and
        `shared_right` of `StepCell`. Draft tokens beyond a request's own bound are dropped at once.
        """
        self._bounds = {}
        drafts = {}
        for request in self.running:
            if (bound := bound_of(request)) is not None:
                self._bounds[request.request_id] = bound
                request.spec_token_ids = request.spec_token_ids[:bound]
            if request.spec_token_ids and request.request_id not in self._gaps:
                drafts[request.request_id] = len(request.spec_token_ids)
        if not self._table.by_request or depth == 0 or len(drafts) < 2:
            return dict.fromkeys(drafts, depth), []
        chances = [self._chances.survival(each, size, self._confidences.get(each)) for each, size in drafts.items()]
        in_all = sum(min(depth, size) for size in drafts.values())
        depths = dict(zip(drafts, shared(chances, in_all), strict=True))
        self._steps_unreported += 1
        if min(drafts.values()) < self.num_spec_tokens or self._steps_unreported < _WHOLE_DRAFT_EVERY:
            return depths, []
        self._steps_unreported = 0
        return depths, [expected_right(chances, k, self._drafted_for(k)) for k in range(1, self.num_spec_tokens + 1)]

    def _drafted_for(self, depth: int) -> int:
        """Return how much a step drafts if the next one verifies K = `depth` of several requests."""
        depth_max: int = self.num_spec_tokens
        if not self._drafts_to_depth:
            return depth_max
        return depth_drafted(depth, depth_max) if self._table.by_request else depth

    def _cut_drafts(self, depths: dict[str, int]) -> dict[str, list[int]]:
        """Cut every running request's draft to its length in `depths`, or to nothing if it is not there.

        Returns:
            The drafts before the cut, by request id, of those that were cut; tokens beyond a bound are gone already.
        """
        whole_drafts: dict[str, list[int]] = {}
        for request in self.running:
            draft, depth = request.spec_token_ids, depths.get(request.request_id, 0)
            if request.request_id in self._gaps:
                request.spec_token_ids = []
            elif len(draft) > depth:
                whole_drafts[request.request_id] = draft
                # A new list: under asynchronous scheduling all requests share one list of placeholders.
                request.spec_token_ids = draft[:depth]
        return whole_drafts

    def _restore_unscheduled(self, whole_drafts: dict[str, list[int]], output: SchedulerOutput) -> None:
        """Restore the whole draft of a request that the step had no room for; a later step may verify more of it."""
        for request_id in whole_drafts.keys() - output.num_scheduled_tokens.keys():
            request = self.requests.get(request_id)
            if request is not None and request.status == RequestStatus.RUNNING:
                request.spec_token_ids = whole_drafts[request_id]

    def _count_prompts(self, output: SchedulerOutput, decoding: set[str]) -> PromptCellSums:
        """Sum what a step with prompts computes; the prompts of `decoding` requests were already complete."""
        for new in output.scheduled_new_reqs:
            self._prompts.begin(new.req_id, new.num_computed_tokens)
        cell = PromptCellSums(drafter=output.num_spec_tokens_to_schedule > 0, steps=1)
        for request_id, tokens in output.num_scheduled_tokens.items():
            if request_id in decoding:
                cell.decoded += 1
                cell.verified += len(output.scheduled_spec_decode_tokens.get(request_id, ()))
            else:
                cell.prompt_tokens += tokens
        cell.beside = cell.decoded > 0
        return cell

    def _keep_tails(self, whole_drafts: dict[str, list[int]], output: SchedulerOutput, cell: CellSums) -> None:
        verified = output.scheduled_spec_decode_tokens
        for request_id, draft in whole_drafts.items() if self._scores_tails else ():
            if request_id not in output.num_scheduled_tokens:
                continue
            request = self.requests[request_id]
            # A resumable session rewrites its last tokens, so later tokens cannot be compared with an earlier draft.
            if not request.resumable:
                start = request.num_tokens
                cut = CutDraft(cell, start, len(verified.get(request_id, ())), draft, self._confidences.get(request_id))
                self._tails.add(request_id, cut)

    def _count_drafts(self, step: ScheduledStep, cell: CellSums, model_output: ModelRunnerOutput) -> None:
        """Count as vLLM does, but by cell, and without rested requests, whose drafts only make the batch uniform."""
        invalid = step.output.num_invalid_spec_tokens or {}
        sampled = model_output.sampled_token_ids
        for request_id, draft in step.output.scheduled_spec_decode_tokens.items():
            if not sampled or request_id in step.rested or not self._is_alive(request_id):
                continue
            emitted = len(sampled[model_output.req_id_to_index[request_id]])
            if emitted:
                cell.add_draft(len(draft) - invalid.get(request_id, 0), emitted - 1)

    def _is_alive(self, request_id: str) -> bool:
        """Return whether a scheduled request still uses its step's output: not if it has ended meanwhile."""
        request = self.requests.get(request_id)
        return request is not None and not request.is_finished()

    def _step_of(self, output: SchedulerOutput) -> ScheduledStep | None:
        while self._steps:
            step = self._steps.popleft()
            if step.output is output:
                return step
        return None
