"""First guess of the step time before any measurement, in the form of a roofline."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NamedTuple


class Terms(NamedTuple):
    """Seconds of one step, by cause."""

    step: float
    weights: float
    experts: float
    sequence: float
    token: float
    draft: float
    draft_sequence: float


# How sharply a step turns from memory-bound to compute-bound: 1 adds both terms, infinity takes the larger. With a
# hard turn the smaller term has no influence, so nothing could be learned about it.
_NORM = 3.0


@dataclass(frozen=True, slots=True)
class CostPrior:
    """Coefficients of `step + sequence·b + draft + draft_sequence·b + either(weights + experts·awake, token·n)`.

    b is the batch size, n the number of tokens that the target computes (b times K + 1), awake the share of experts
    that n tokens activate, 1 - (1 - active/count)^n, and either(x, y) a smooth max(x, y). So the best K is not monotone
    in b: at first each further token activates more experts; once all are active, tokens are free up to the compute
    bound.

    Attributes:
        step_s: Fixed cost of a step: launches, sampling, scheduling.
        weights_s: Reading the weights that every token needs.
        sequence_s: For each sequence of the batch.
        token_s: Computing one token, and drafting one if the drafter drafts only K.
        draft_s: The drafter's pass, independent of K.
        draft_sequence_s: The drafter's pass, for each sequence.
        experts_s: Reading all experts; 0 for a dense target.
        experts: Experts in a layer; 0 for a dense target.
        experts_active: Experts that one token activates.
        scale_sd: Uncertainty of each coefficient: the standard deviation of its logarithm.
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
        """Return the seconds of one step.

        Args:
            scaled: The coefficients with their current corrections.
            batch_size: Sequences in the step.
            tokens: Tokens that the target computes.
            drafting: Sequences that the drafter drafts for; 0 if it does not run.
        """
        memory = scaled.weights + scaled.experts * self._awake(tokens) if self.experts else scaled.weights
        either: float = (memory**_NORM + (scaled.token * tokens) ** _NORM) ** (1.0 / _NORM)
        draft = scaled.draft + scaled.draft_sequence * drafting if drafting else 0.0
        return scaled.step + scaled.sequence * batch_size + draft + either

    def terms(self, scaled: Terms, batch_size: float, tokens: float, drafting: float) -> Terms:
        """Split `seconds` into terms; memory and compute divide the part that both of them bound."""
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
    """A target's weights in GB (shared by all tokens, and of all experts) and the parameters active for one token."""

    dense_gb: float
    experts_gb: float
    active_parameters: float
    experts: int = 0
    experts_active: int = 0


EMBEDDED_CPU = CostPrior(
    step_s=5.3e-3, weights_s=1.8e-3, sequence_s=0.28e-3, token_s=0.30e-3, draft_s=2.9e-3, draft_sequence_s=0.1e-3
)
"""Prior of the embedded model, compiled, on one core in bfloat16, with a drafter that drafts only K.

It predicts 7 ms without speculation at batch 1 and 24 ms at 32, and 11 and 98 ms at K = 7. The shape follows measured
steps of 1 to 32 sequences at K = 0 to 7. Of the cores measured, the fastest took 4 ms at batch 1, the slowest 8."""
_EMBEDDED_SIZE = TargetSize(0.022020096, 0.0, 11_010_048.0)
# Weights that a head of four layers reads, as a share of those that its target reads.
_HEAD_RATIO = 0.2

# By Ray's names: published memory bandwidths, and dense BF16 rates with 32-bit accumulation.
DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        "A10": Device(0.6, 0.125),
        "A10G": Device(0.6, 0.07),
        "L4": Device(0.3, 0.121),
        "L40S": Device(0.864, 0.362),
        "A100": Device(1.555, 0.312),  # the name does not give the memory, so the lower bandwidth
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
# Full names only: a name with a suffix may be quantized differently.
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
    """Return the size of the target in `repository`, under any owner; None if the model is unknown."""
    name = _REPOSITORIES.get(repository.rpartition("/")[2].lower())
    return TARGETS[name] if name is not None else None


_MEMORY_REACHED, _COMPUTE_REACHED = 0.7, 0.45


def roofline_prior(target: TargetSize, device: Device, devices: int = 1) -> CostPrior:
    """Derive a prior from the sizes of a model and of the GPUs that share each of its layers.

    Each of the `devices` reads its part of the weights and computes its part of a token.
    """
    bandwidth = _MEMORY_REACHED * devices * device.memory_tb_per_s * 1e12
    compute = _COMPUTE_REACHED * devices * device.compute_pflop_per_s * 1e15
    return CostPrior(
        step_s=1.6e-3,  # measured as 1.5 to 1.8 ms on a B200
        weights_s=target.dense_gb * 1e9 / bandwidth,
        sequence_s=10e-6,  # its KV cache, and work on the host
        token_s=2.0 * target.active_parameters / compute,
        draft_s=1.5e-3,
        experts_s=target.experts_gb * 1e9 / bandwidth,
        experts=target.experts,
        experts_active=target.experts_active,
    )


def cpu_prior(target: TargetSize, cores: int = 1) -> CostPrior:
    """Scale EMBEDDED_CPU to another target.

    Weights and computation scale with its size. The cores share the part that exceeds the embedded model's.
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
