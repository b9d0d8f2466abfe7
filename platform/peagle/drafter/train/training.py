"""Shared by target and head training: optimizers, rate schedule, and checkpoints that survive a kill."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

CHECKPOINT = "checkpoint.pt"


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rates: warm up, hold, then fall linearly to zero over the last `decay_steps`, or over all steps of a
    shorter run."""

    matrix: float
    other: float
    warmup_steps: int
    decay_steps: int
    weight_decay: float = 0.1

    def factor_at(self, step: int, steps: int) -> float:
        """Return the factor in (0, 1] of both rates at `step` (0-based) of `steps`."""
        return min(1.0, (step + 1) / self.warmup_steps, (steps - step) / min(self.decay_steps, steps))


@dataclass(frozen=True, slots=True)
class Progress:
    """A finished step: `loss` in nats, for a head weighted by position, and a head's `accuracy` by draft position."""

    step: int
    steps: int
    loss: float
    tokens_per_s: float
    accuracy: tuple[float, ...] = ()


def make_optimizers(
    matrices: Sequence[torch.nn.Parameter], others: Sequence[torch.nn.Parameter], rates: Rates
) -> tuple[torch.optim.Optimizer, ...]:
    """Create Muon for hidden matrices, which needs fewer steps than AdamW at these sizes, and AdamW for the rest."""
    adamw = torch.optim.AdamW(list(others), lr=rates.other, betas=(0.9, 0.95), weight_decay=0.01)
    if not matrices:
        return (adamw,)
    muon = torch.optim.Muon(
        list(matrices), lr=rates.matrix, weight_decay=rates.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    return muon, adamw


def update(optimizers: Iterable[torch.optim.Optimizer], factor: float) -> None:
    """Apply the gradients at `factor` times the full rates, and clear them."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("full_lr", group["lr"]) * factor
        optimizer.step()
        optimizer.zero_grad()


def save_checkpoint(
    folder: Path, model: torch.nn.Module, optimizers: Iterable[torch.optim.Optimizer], step: int
) -> None:
    """Replace the folder's checkpoint atomically, so that a kill while writing leaves the previous one."""
    partial = folder / f"{CHECKPOINT}.partial"
    state = {"step": step, "model": model.state_dict(), "optimizers": [each.state_dict() for each in optimizers]}
    torch.save(state, partial)
    partial.replace(folder / CHECKPOINT)


def checkpoint_step(folder: Path) -> int:
    """Return the number of steps of the folder's checkpoint; 0 without one."""
    path = folder / CHECKPOINT
    return int(torch.load(path, map_location="cpu", weights_only=True)["step"]) if path.exists() else 0


def restore_checkpoint(folder: Path, model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> int:
    """Load the folder's checkpoint, if there is one; return the step from which to continue, 0 without one."""
    path = folder / CHECKPOINT
    if not path.exists():
        return 0
    state = torch.load(path, map_location="cpu", weights_only=True)  # loading it moves it to the weights' device
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])
