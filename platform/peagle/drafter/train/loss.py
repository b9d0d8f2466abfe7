"""Loss of a head: its distance to the target at every position, weighted by the gain of a better draft there.

A draft only counts if everything before it is accepted. So a position's weight is its gain in acceptance length: the
sum, over its own depth and all later ones, of the probability that the draft is accepted up to there (D-PACE, as in
`speculators`). Sampling (COD) may cut a chain short; the remaining positions then represent the missing ones.
"""

from collections.abc import Sequence

import torch
from speculators.losses import LossConfig
from speculators.losses.eager import kl_div_loss

# Added by speculators to the number of positions in a mean.
COUNT_EPSILON = 1e-5


def weighted_kl(
    anchors: torch.Tensor, depths: torch.Tensor, loss_mask: torch.Tensor, kept: Sequence[float], floor: float | None
) -> LossConfig:
    """Return the weighted KL divergence from head to target, in speculators' form of a loss.

    Args:
        anchors: Start of each position's chain, int [positions].
        depths: Depth of each position in its chain, int [positions].
        loss_mask: 1 for positions with a loss, [1, length].
        kept: Share of positions that sampling leaves at each depth, [depths].
        floor: As in `acceptance_weights`; with None all positions weigh the same.
    """

    def weighted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        weights = torch.ones(len(anchors), device=logits.device)
        if floor is not None:
            # Tokens before the start of the loss are given, so they are right.
            right = confidence(logits, targets)[0].masked_fill(loss_mask[0, anchors + depths] == 0, 1.0)
            weights = acceptance_weights(right, anchors, depths, kept, floor)
        distance: torch.Tensor = kl_div_loss(logits, targets)
        return distance * weights

    return {"kl_div": (weighted, 1.0)}


class StepwiseKL:
    """The same for EAGLE-3. Its losses arrive depth by depth, but weights need all of them, so this collects first."""

    def __init__(self, floor: float | None) -> None:
        """`floor` as in `acceptance_weights`; with None all positions weigh the same."""
        self._floor = floor
        self._distances: list[torch.Tensor] = []
        self._right: list[torch.Tensor] = []

    @property
    def config(self) -> LossConfig:
        """The loss for the head's pass; the value that the pass itself returns is zero."""
        return {"kl_div": (self._collect, 1.0)}

    def _collect(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self._floor is not None:
            self._right.append(confidence(logits, targets)[0])
        self._distances.append(kl_div_loss(logits, targets)[0])
        return logits.new_zeros(logits.shape[:2])

    def mean(self, loss_mask: torch.Tensor) -> torch.Tensor:
        """Return the weighted loss over all positions and depths counted by `loss_mask`, [1, length], in nats."""
        steps = [torch.arange(len(step), device=step.device) for step in self._distances]
        anchors = torch.cat(steps)
        depths = torch.cat([torch.full_like(step, depth) for depth, step in enumerate(steps)])
        counted = loss_mask[0, anchors + depths]
        distances = torch.cat(self._distances) * counted
        if self._floor is not None:
            right = torch.cat(self._right).masked_fill(counted == 0, 1.0)
            distances = distances * acceptance_weights(right, anchors, depths, [1.0] * len(steps), self._floor)
        return distances.sum() / (counted.sum() + COUNT_EPSILON)


@torch.no_grad()
def confidence(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the head's probability of the target's first choice: [1, positions], from two of
    [1, positions, vocabulary]."""
    chosen = targets.argmax(-1, keepdim=True)
    return torch.log_softmax(logits.float(), -1).gather(-1, chosen).squeeze(-1).exp()


def acceptance_weights(
    right: torch.Tensor, anchors: torch.Tensor, depths: torch.Tensor, kept: Sequence[float], floor: float
) -> torch.Tensor:
    """Return the gain in acceptance length of each position, [positions].

    Args:
        right: Probability that the position's draft is accepted, [positions].
        anchors, depths: As in `weighted_kl`; all earlier positions of a chain must be included.
        kept: As in `weighted_kl`.
        floor: In (0, 1]; draws probabilities towards 1, so that a chain with a difficult start still teaches.
    """
    first = anchors.min()
    shape = (int(anchors.max() - first) + 1, len(kept))
    at = (anchors - first, depths)
    chances = right.new_ones(shape)
    chances[at] = floor + (1 - floor) * right
    reached = right.new_zeros(shape)
    reached[at] = chances.cumprod(1)[at]
    gains = (reached / right.new_tensor(kept)).flip(1).cumsum(1).flip(1)
    return gains[at]
