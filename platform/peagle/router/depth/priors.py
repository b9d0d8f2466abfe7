"""A first guess of how long a step takes, before anything is measured. The shape is that of a roofline."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple


class Terms(NamedTuple):
    """Seconds of one step, by what they are spent on."""

    step: float
    weights: float
    experts: float
    sequence: float
    token: float
    draft: float
    draft_sequence: float


# How sharply a step turns from bound by memory to bound by compute: 1 adds the two up, infinity takes the larger. A
# hard turn would leave the smaller one without influence, so that nothing could be learned of it.
_NORM = 3.0


@dataclass(frozen=True, slots=True)
class CostPrior:
    """Coefficients of `step + sequence·b + draft + draft_sequence·b + either(weights + experts·awake, token·n)`.

    b is the batch size, n the tokens that the target computes (b times K + 1), awake the share of experts that n
    tokens wake, 1 - (1 - active/count)^n, and either(x, y) a smooth max(x, y). The best K is then not monotone in b:
    while experts sleep each further token wakes some, and once all are awake tokens are free up to the compute bound.

    Attributes:
        step_s: Every step: launches, sampling, scheduling.
        weights_s: Reading what every token needs.
        sequence_s: For each sequence of the batch.
        token_s: Computing one token, and drafting one where the drafter drafts no deeper than K.
        draft_s: The drafter's pass, whatever K is.
        draft_sequence_s: The drafter's pass, for each sequence.
        experts_s: Reading all experts; 0 for a dense target.
        experts: How many there are in a layer; 0 for a dense target.
        experts_active: How many of them one token wakes.
        scale_sd: How far each coefficient may be off: the standard deviation of its logarithm.
    """

    step_s: float
    weights_s: float
    sequence_s: float
    token_s: float
    draft_s: float
    draft_sequence_s: float = 0.0
    experts_s: float = 0.0
    experts: int = 0
    experts_active: int = 0
    scale_sd: float = 0.4

    @property
    def coefficients(self) -> Terms:
        return Terms(
            self.step_s,
            self.weights_s,
            self.experts_s,
            self.sequence_s,
            self.token_s,
            self.draft_s,
            self.draft_sequence_s,
        )

    def seconds(self, scaled: Terms, batch_size: float, tokens: float, drafting: float) -> float:
        """Return one step's seconds.

        Args:
            scaled: The coefficients, as far as they are corrected by now.
            batch_size: Sequences in the step.
            tokens: Tokens that the target computes.
            drafting: Sequences that the drafter drafts for; 0 where it does not run.
        """
        memory = scaled.weights + scaled.experts * self._awake(tokens) if self.experts else scaled.weights
        either: float = (memory**_NORM + (scaled.token * tokens) ** _NORM) ** (1.0 / _NORM)
        draft = scaled.draft + scaled.draft_sequence * drafting if drafting else 0.0
        return scaled.step + scaled.sequence * batch_size + draft + either

    def terms(self, scaled: Terms, batch_size: float, tokens: float, drafting: float) -> Terms:
        """Split `seconds`, of the same arguments; memory and compute share what both of them bound."""
        experts = scaled.experts * self._awake(tokens)
        memory, compute = scaled.weights + experts, scaled.token * tokens
        either = (memory**_NORM + compute**_NORM) ** (1.0 / _NORM)
        by_memory, by_compute = (memory / either) ** (_NORM - 1.0), (compute / either) ** (_NORM - 1.0)
        return Terms(
            scaled.step,
            scaled.weights * by_memory,
            experts * by_memory,
            scaled.sequence * batch_size,
            compute * by_compute,
            scaled.draft if drafting else 0.0,
            scaled.draft_sequence * drafting,
        )

    def _awake(self, tokens: float) -> float:
        return 1.0 - (1.0 - self.experts_active / self.experts) ** tokens if self.experts else 0.0


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: memory bandwidth in TB/s, dense BF16 compute in PFLOP/s."""

    memory_tb_per_s: float
    compute_pflop_per_s: float


@dataclass(frozen=True, slots=True)
class TargetSize:
    """A target's weights in GB (those of every token, those of all experts) and parameters active for one token."""

    dense_gb: float
    experts_gb: float
    active_parameters: float
    experts: int = 0
    experts_active: int = 0


EMBEDDED_CPU = CostPrior(
    step_s=5.3e-3, weights_s=1.8e-3, sequence_s=0.28e-3, token_s=0.30e-3, draft_s=2.9e-3, draft_sequence_s=0.1e-3
)
"""The embedded model, compiled, on one core with bfloat16: 7 ms without speculation at batch 1 and 24 ms at 32, 11 and
98 with K = 7, where the drafter drafts no deeper than K. The shape is that of measured steps of 1 to 32 sequences at
K = 0 to 7; of the cores that were tried, the quickest took 4 ms at batch 1 and the slowest 8.
"""
_EMBEDDED_SIZE = TargetSize(0.022020096, 0.0, 11_010_048.0)
# Of a head of four layers: what it reads beside what its target reads.
_HEAD_RATIO = 0.2

# By Ray's names: published memory bandwidths, and dense BF16 rates with sums in 32 bits.
DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "A10": Device(0.6, 0.125),
        "A10G": Device(0.6, 0.07),
        "L4": Device(0.3, 0.121),
        "L40S": Device(0.864, 0.362),
        "A100": Device(1.555, 0.312),  # at least: of one that does not say its memory
        "A100-40G": Device(1.555, 0.312),
        "A100-80G": Device(2.039, 0.312),
        "H20": Device(4.0, 0.148),
        "H100": Device(3.35, 0.99),
        "H200": Device(4.8, 0.99),
        "B200": Device(8.0, 2.25),
        "B300": Device(8.0, 2.25),
        "GB200": Device(8.0, 2.5),
        "GB300": Device(8.0, 2.5),
    }
)
TARGETS: Mapping[str, TargetSize] = MappingProxyType(
    {
        "gpt-oss-120b": TargetSize(3.1, 60.9, 5.1e9, 128, 4),
        "gpt-oss-20b": TargetSize(2.4, 10.2, 3.6e9, 32, 4),
        "qwen3-coder-30b-a3b": TargetSize(1.5, 29.0, 3.3e9, 128, 8),
        "gemma-4-31b": TargetSize(62.0, 0.0, 31e9),
    }
)
# Whole names: one with more to it may be quantized in another way.
_REPOSITORIES: Mapping[str, str] = MappingProxyType(
    {
        "gpt-oss-120b": "gpt-oss-120b",
        "gpt-oss-20b": "gpt-oss-20b",
        "qwen3-coder-30b-a3b-instruct-fp8": "qwen3-coder-30b-a3b",
        "gemma-4-31b": "gemma-4-31b",
        "gemma-4-31b-it": "gemma-4-31b",
    }
)


def known_target(repository: str) -> TargetSize | None:
    """Return the size of the target in `repository`, whosever copy it is; None for one that is not known."""
    name = _REPOSITORIES.get(repository.rpartition("/")[2].lower())
    return TARGETS[name] if name is not None else None


_MEMORY_REACHED, _COMPUTE_REACHED = 0.7, 0.45


def roofline_prior(target: TargetSize, device: Device, devices: int = 1) -> CostPrior:
    """Derive a prior from the sizes of a model and of the GPUs that share each of its layers.

    Each of `devices` reads its part of the weights, and computes its part of a token.
    """
    bandwidth = _MEMORY_REACHED * devices * device.memory_tb_per_s * 1e12
    compute = _COMPUTE_REACHED * devices * device.compute_pflop_per_s * 1e15
    return CostPrior(
        step_s=1.6e-3,  # measured as 1.5 to 1.8 ms on a B200
        weights_s=target.dense_gb * 1e9 / bandwidth,
        sequence_s=10e-6,  # its KV cache and the work on the host
        token_s=2.0 * target.active_parameters / compute,
        draft_s=1.5e-3,
        experts_s=target.experts_gb * 1e9 / bandwidth,
        experts=target.experts,
        experts_active=target.experts_active,
    )


def cpu_prior(target: TargetSize, cores: int = 1) -> CostPrior:
    """Scale EMBEDDED_CPU to another target.

    Weights and computation follow its size, and the cores share what is more than the embedded model's.
    """
    read = (target.dense_gb / _EMBEDDED_SIZE.dense_gb - 1.0) / cores
    computed = (target.active_parameters / _EMBEDDED_SIZE.active_parameters - 1.0) / cores
    embedded = EMBEDDED_CPU
    return replace(
        embedded,
        weights_s=embedded.weights_s * (1.0 + read),
        token_s=embedded.token_s * (1.0 + computed),
        draft_s=embedded.draft_s + _HEAD_RATIO * embedded.weights_s * read,
        experts_s=embedded.weights_s * target.experts_gb / _EMBEDDED_SIZE.dense_gb / cores,
        experts=target.experts,
        experts_active=target.experts_active,
    )
