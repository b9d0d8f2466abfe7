"""What a head learns from: its distance to the target at every position, by how much a better draft there would gain.

A draft is worth something only as far as everything before it is accepted. So a position counts as much as the
acceptance length gains by it, which is the sum, over its own depth and all later ones, of the chance that a draft is
right up to there (D-PACE, as `speculators` weighs blocks). Here a chain may be cut short by sampling (COD), and what is
left of it stands for what is not.
"""

from collections.abc import Sequence

import torch
from speculators.losses import LossConfig
from speculators.losses.eager import kl_div_loss

# What speculators adds to the number of positions that a loss is the mean over.
COUNT_EPSILON = 1e-5


def weighted_kl(
    anchors: torch.Tensor, depths: torch.Tensor, loss_mask: torch.Tensor, kept: Sequence[float], floor: float | None
) -> LossConfig:
    """KL divergence from head to target, weighed, as speculators takes a loss.

    Args:
        anchors: Where the chain of each position starts, int [positions].
        depths: How far each is into its chain, int [positions].
        loss_mask: 1 where a loss is taken, [1, length].
        kept: Share of positions that sampling leaves of each depth, [depths].
        floor: As in `acceptance_weights`; without it all positions weigh the same.
    """

    def weighted(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        weights = torch.ones(len(anchors), device=logits.device)
        if floor is not None:
            # Before the loss begins the tokens are given, and so right.
            right = confidence(logits, targets)[0].masked_fill(loss_mask[0, anchors + depths] == 0, 1.0)
            weights = acceptance_weights(right, anchors, depths, kept, floor)
        distance: torch.Tensor = kl_div_loss(logits, targets)
        return distance * weights

    return {"kl_div": (weighted, 1.0)}


class StepwiseKL:
    """The same for EAGLE-3, whose losses come depth by depth while a weight needs all of them: collects, then sums."""

    def __init__(self, floor: float | None) -> None:
        """`floor` as in `acceptance_weights`; without it all positions weigh the same."""
        self._floor = floor
        self._distances: list[torch.Tensor] = []
        self._right: list[torch.Tensor] = []

    @property
    def config(self) -> LossConfig:
        """What the head's pass is given; the loss that it returns itself is zero."""
        return {"kl_div": (self._collect, 1.0)}

    def _collect(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self._floor is not None:
            self._right.append(confidence(logits, targets)[0])
        self._distances.append(kl_div_loss(logits, targets)[0])
        return logits.new_zeros(logits.shape[:2])

    def mean(self, loss_mask: torch.Tensor) -> torch.Tensor:
        """The weighed loss over all positions and depths that `loss_mask`, [1, length], counts: a scalar, in nats."""
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
    """The chance that the head gives to the target's first choice: [1, positions], from two of
    [1, positions, vocabulary]."""
    chosen = targets.argmax(-1, keepdim=True)
    return torch.log_softmax(logits.float(), -1).gather(-1, chosen).squeeze(-1).exp()


def acceptance_weights(
    right: torch.Tensor, anchors: torch.Tensor, depths: torch.Tensor, kept: Sequence[float], floor: float
) -> torch.Tensor:
    """How much the acceptance length gains by each position, [positions].

    Args:
        right: The chance that the draft there is right, [positions].
        anchors, depths: As in `weighted_kl`; with a position all those before it in its chain are there.
        kept: As there.
        floor: In (0, 1]; chances are drawn towards 1 by it, so that a chain whose start is hard still teaches.
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
