"""Makes a seed give the same text at every draft depth, drafter and batch, with or without speculation.

vLLM's own seeded sampling draws from a generator that each step advances by the number of drafts, so the text depends
on the drafts, and with a depth that follows load, on the load. Here a seeded request's token at each position is drawn
with noise keyed by seed and position (`keyed_noise`), and a draft is accepted if it equals that token. This is exact
sampling from the target: the token comes from the target's distribution, whatever was drafted. Acceptance is also that
of rejection sampling if the drafter proposes its likeliest token, as P-EAGLE does: the target's probability of the
draft. Requests without a seed are sampled by vLLM as usual.

Rounding remains: logits differ in their last bits with the shape of the batch, and sometimes two tokens are that close.

Written against vLLM 0.29's model runner V1. `install` changes three places: `GPUModelRunner` (and so the CPU one)
passes positions along with the generators; `TopKTopPSampler` and `rejection_sample` draw seeded rows with them.
"""

import dataclasses
from typing import TYPE_CHECKING, Any

from torch import Tensor

from peagle.engine.drafting.seeded_rows import SeededRows, to_device

if TYPE_CHECKING:
    from vllm.v1.sample.metadata import SamplingMetadata

_MARK = "peagle_seeded"


def install() -> None:
    """Make this process's vLLM sample seeded requests by position. Idempotent."""
    from vllm.v1.sample import rejection_sampler
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    if hasattr(GPUModelRunner, _MARK):
        return
    setattr(GPUModelRunner, _MARK, True)
    _hand_positions_on(GPUModelRunner)
    _draw_last_rows(TopKTopPSampler)
    _judge_drafts(rejection_sampler)


def _hand_positions_on(runner_class: Any) -> None:
    sample, bookkeeping = runner_class._sample, runner_class._bookkeeping_sync

    def sample_with_positions(self: Any, logits: Tensor | None, drafts: Any) -> Any:
        batch = self.input_batch
        if not batch.generators:
            return sample(self, logits, drafts)
        # Positions on the device, because with asynchronous scheduling the host does not know how many were accepted.
        last = self.positions[self.query_start_loc.gpu[1 : batch.num_reqs + 1].long() - 1]
        drafted = None if drafts is None else self.positions[drafts.logits_indices[drafts.target_logits_indices].long()]
        plain = batch.sampling_metadata
        batch.sampling_metadata = dataclasses.replace(plain, generators=SeededRows(batch.generators, last, drafted))
        try:
            return sample(self, logits, drafts)
        finally:
            batch.sampling_metadata = plain

    def bookkeeping_without_rewind(self: Any, *args: Any, **kwargs: Any) -> Any:
        # While a long prompt is prefilled in chunks, vLLM rewinds its generator after each. Here nothing depends on it,
        # and a CPU generator cannot be rewound: the error would end the engine.
        batch = self.input_batch
        generators, batch.generators = batch.generators, {}
        try:
            return bookkeeping(self, *args, **kwargs)
        finally:
            batch.generators = generators

    runner_class._sample = sample_with_positions
    runner_class._bookkeeping_sync = bookkeeping_without_rewind


def _draw_last_rows(sampler_class: Any) -> None:
    from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

    draw = sampler_class.__call__

    def draw_keyed(self: Any, logits: Tensor, generators: Any, k: Tensor | None, p: Tensor | None) -> Any:
        if not isinstance(generators, SeededRows):
            return draw(self, logits, generators, k, p)
        logits = apply_top_k_top_p(logits, k, p)
        requests, tokens = generators.sample_last(logits)
        # On a CPU a plain dict keeps vLLM on its seeded sampler, which leaves `logits` unchanged. Elsewhere the
        # unseeded sampler also leaves them unchanged, and an empty dict avoids unused noise for each request.
        plain = dict(generators) if logits.is_cpu else {}
        sampled, processed = draw(self, logits, plain, None, None)
        return sampled.index_copy(0, requests, tokens.to(sampled.dtype)), processed

    sampler_class.__call__ = draw_keyed


def _judge_drafts(module: Any) -> None:
    judge = module.rejection_sample

    def judge_keyed(
        draft_token_ids: Tensor,
        num_draft_tokens: list[int],
        max_spec_len: int,
        cu_num_draft_tokens: Tensor,
        draft_probs: Tensor | None,
        target_logits: Tensor,
        bonus_token_ids: Tensor,
        sampling_metadata: "SamplingMetadata",
        **options: Any,
    ) -> Tensor:
        seeded = sampling_metadata.generators
        if isinstance(seeded, SeededRows):
            rows, tokens = seeded.sample_drafted(target_logits, num_draft_tokens)
            # With fixed noise, sampling is greedy decoding. vLLM's greedy rule then accepts drafts that equal the token
            # and emits the token otherwise. `target_logits` itself is read again for logprobs.
            target_logits = target_logits.index_fill(0, rows, float("-inf"))
            target_logits[rows, tokens] = 0.0
            requests = to_device(list(seeded), target_logits.device)
            temperature = sampling_metadata.temperature.index_fill(0, requests, 0.0)
            sampling_metadata = dataclasses.replace(
                sampling_metadata, temperature=temperature, all_random=False, generators={}
            )
        judged: Tensor = judge(
            draft_token_ids,
            num_draft_tokens,
            max_spec_len,
            cu_num_draft_tokens,
            draft_probs,
            target_logits,
            bonus_token_ids,
            sampling_metadata,
            **options,
        )
        return judged

    module.rejection_sample = judge_keyed
