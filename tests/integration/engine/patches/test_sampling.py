"""vLLM's samplers on CPU with peagle's fixes, with given logits and many draws, without an engine."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

VOCABULARY = 7
DRAFTS = 3
START = 5  # the position of every request's first row
CHI_SQUARE_6 = 22.46  # 0.1 % quantile, 6 degrees of freedom
CHI_SQUARE_3 = 16.27


@pytest.fixture(scope="module", autouse=True)
def vllm_with_cpu_kernels() -> None:
    """Do once what a worker and the CPU model runner do at start."""
    from vllm.platforms import current_platform
    from vllm.utils import cpu_triton_utils
    from vllm.v1.sample import rejection_sampler

    from peagle.engine.patches.patch_table import install_patches
    from peagle.upstream import Process

    install_patches(Process.WORKER)
    current_platform.import_kernels()
    for kernel in (
        "rejection_greedy_sample_kernel",
        "rejection_random_sample_kernel",
        "expand_kernel",
        "sample_recovered_tokens_kernel",
    ):
        setattr(rejection_sampler, kernel, getattr(cpu_triton_utils, kernel))


class Batch:
    """Requests with the same logits; request i has `drafts[i]` and the seed `seeds[i]`, or None."""

    def __init__(
        self,
        row_logits: Tensor,
        drafts: Sequence[Sequence[int]],
        seeds: Sequence[int | None],
        temperature: float | Sequence[float] = 1.0,
        **settings: Any,
    ) -> None:
        from vllm.v1.sample.logits_processor import LogitsProcessors
        from vllm.v1.sample.metadata import SamplingMetadata

        self.size = len(drafts)
        self.counts = [len(tokens) for tokens in drafts]
        self.drafts = torch.tensor([token for tokens in drafts for token in tokens], dtype=torch.int32)
        self.generators = {
            request: torch.Generator().manual_seed(seed) for request, seed in enumerate(seeds) if seed is not None
        }
        temperatures = torch.full((self.size,), 1.0) * torch.as_tensor(temperature)
        zeros = torch.zeros(self.size)
        settings = {"top_k": None, "top_p": None, "max_num_logprobs": None, **settings}
        self.metadata = SamplingMetadata(
            temperature=temperatures,
            all_greedy=False,
            all_random=bool((temperatures > 0).all()),
            generators=self.generators,
            no_penalties=True,
            prompt_token_ids=None,
            frequency_penalties=zeros,
            presence_penalties=zeros,
            repetition_penalties=zeros + 1,
            output_token_ids=[],
            allowed_token_ids_mask=None,
            bad_words_token_ids={},
            logitsprocs=LogitsProcessors(),
            **settings,
        )
        self.row_logits = row_logits

    def _seeded(self, drafted: Tensor | None, last: Tensor) -> Any:
        import dataclasses

        from peagle.engine.drafting.seeded_rows import SeededRows

        if not self.generators:
            return self.metadata
        return dataclasses.replace(self.metadata, generators=SeededRows(self.generators, last, drafted))

    def without_speculation(self, position: int) -> list[int]:
        """Return each request's token after `position`."""
        from vllm.v1.sample.sampler import Sampler

        last = torch.full((self.size,), position)
        metadata = self._seeded(None, last)
        return Sampler()(self.row_logits.repeat(self.size, 1), metadata).sampled_token_ids[:, 0].tolist()

    def judged(self, logprobs_mode: str = "raw_logprobs") -> Any:
        """Return the rejection sampler's output for one step."""
        from vllm.v1.sample.rejection_sampler import RejectionSampler
        from vllm.v1.sample.sampler import Sampler
        from vllm.v1.spec_decode.metadata import SpecDecodeMetadata

        ends = torch.tensor([count + 1 for count in self.counts]).cumsum(0)
        rows = torch.arange(int(ends[-1]))
        is_last = torch.isin(rows, ends - 1)
        positions = torch.cat([torch.arange(START, START + count + 1) for count in self.counts])
        step = SpecDecodeMetadata(
            draft_token_ids=self.drafts,
            num_draft_tokens=self.counts,
            cu_num_draft_tokens=torch.tensor(self.counts).cumsum(0).to(torch.int32),
            cu_num_sampled_tokens=ends.to(torch.int32),
            target_logits_indices=rows[~is_last],
            bonus_logits_indices=rows[is_last],
            logits_indices=rows,
        )
        sampler = RejectionSampler(Sampler(logprobs_mode=logprobs_mode))  # type: ignore[arg-type]
        metadata = self._seeded(positions[~is_last], positions[is_last])
        return sampler(step, None, self.row_logits.repeat(len(rows), 1), metadata)

    def tokens(self) -> list[list[int]]:
        """Return what each request emits in one step."""
        from vllm.v1.sample.rejection_sampler import RejectionSampler

        return RejectionSampler.parse_output(self.judged().sampled_token_ids, VOCABULARY)[0]


def chi_square(tokens: list[int], shares: Tensor) -> float:
    counts = torch.tensor(tokens).bincount(minlength=len(shares)).double()
    assert counts[shares == 0].sum() == 0
    counts, shares = counts[shares > 0], shares[shares > 0]
    expected = shares * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.fixture
def logits() -> Tensor:
    return torch.tensor([2.0, -1.0, 0.5, 0.0, 1.5, -2.0, 1.0])


@pytest.mark.parametrize("seeded", [False, True], ids=["no seed", "seeds"])
@pytest.mark.parametrize("draft", [0, 5], ids=["likely draft", "unlikely draft"])
def test_sampling_follows_the_target_at_the_temperature_asked_for(logits: Tensor, seeded: bool, draft: int) -> None:
    size = 8_000
    seeds = list(range(size)) if seeded else [None] * size
    emitted = Batch(logits, [[draft] * DRAFTS] * size, seeds, temperature=0.5).tokens()
    target = (logits / 0.5).softmax(0)
    assert chi_square([tokens[0] for tokens in emitted], target) < CHI_SQUARE_6
    accepted = sum(tokens[0] == draft for tokens in emitted)
    assert sum(len(tokens) > 1 for tokens in emitted) == accepted
    assert abs(accepted / size - target[draft]) < 5 * (target[draft] / size) ** 0.5


@pytest.mark.parametrize("seeded", [False, True], ids=["no seed", "seeds"])
@pytest.mark.parametrize("filters", ["top_k", "top_p"])
def test_sampling_of_drafts_obeys_top_k_and_top_p(logits: Tensor, seeded: bool, filters: str) -> None:
    size = 4_000
    kept = torch.tensor([0, 4, 6, 2])
    settings = {
        "top_k": {"top_k": torch.full((size,), 4, dtype=torch.int32)},
        "top_p": {"top_p": torch.full((size,), 0.9)},
    }[filters]
    target = torch.zeros(VOCABULARY).index_copy(0, kept, logits[kept].softmax(0))
    seeds = list(range(size)) if seeded else [None] * size
    emitted = Batch(logits, [[4] * DRAFTS] * size, seeds, **settings).tokens()
    assert chi_square([tokens[0] for tokens in emitted], target) < CHI_SQUARE_3


def test_a_seeded_request_emits_what_it_would_without_speculation_whatever_is_drafted(logits: Tensor) -> None:
    seeds = list(range(40))
    plain = [Batch(logits, [[]] * 40, seeds).without_speculation(START + ahead) for ahead in range(DRAFTS + 1)]
    lengths = set()
    for draft in range(VOCABULARY):
        for depth in range(1, DRAFTS + 1):
            for request, tokens in enumerate(Batch(logits, [[draft] * depth] * 40, seeds).tokens()):
                assert tokens == [plain[ahead][request] for ahead in range(len(tokens))]
                lengths.add(len(tokens))
    assert lengths == set(range(1, DRAFTS + 2))


def test_seeds_hold_beside_greedy_and_unseeded_requests_and_leave_those_alone(logits: Tensor) -> None:
    seeds = [1, None, None, 2] * 10
    temperature = [1.0, 0.0, 1.0, 1.0] * 10
    drafts = [[0, 0], [0, 3], [4, 4], []] * 10
    alone = Batch(logits, [[0, 0]], [1]).tokens()[0]
    emitted = Batch(logits, drafts, seeds, temperature).tokens()
    assert emitted[0::4] == [alone] * 10
    assert emitted[1::4] == [[0, 0]] * 10  # the greedy token is 0, so the second draft is rejected
    assert len({tuple(tokens) for tokens in emitted[2::4]}) > 1
    assert emitted[3::4] == [Batch(logits, [[]], [2]).without_speculation(START)] * 10


@pytest.mark.parametrize("mode", ["raw_logprobs", "processed_logprobs"])
def test_logprobs_are_the_targets_and_not_the_noises(logits: Tensor, mode: str) -> None:
    output = Batch(logits, [[0, 0, 0]], [3], temperature=0.5, max_num_logprobs=2).judged(mode)
    expected = (logits / (0.5 if mode == "processed_logprobs" else 1.0)).log_softmax(0)
    emitted = [token for token in output.sampled_token_ids[0].tolist() if token >= 0]
    for token, told in zip(emitted, output.logprobs_tensors.logprobs.tolist(), strict=False):
        assert told[0] == pytest.approx(float(expected[token]), abs=1e-5)
        assert told[1:] == pytest.approx(expected.topk(2).values.tolist(), abs=1e-5)


def test_vllms_own_stand_in_still_needs_the_fix() -> None:
    """Fails once vLLM writes its expanded values; `cpu_sampling` can then be removed."""
    code = """
import torch
from vllm.platforms import current_platform
from vllm.utils import cpu_triton_utils
current_platform.import_kernels()
output = torch.full((3,), -1.0)
cpu_triton_utils.expand_kernel[(2,)](output, torch.tensor([0.5, 0.7]), torch.tensor([1, 3]), 0, 1, MAX_NUM_TOKENS=128)
assert output.tolist() == [-1.0] * 3, output
"""
    subprocess.run([sys.executable, "-c", code], check=True)
