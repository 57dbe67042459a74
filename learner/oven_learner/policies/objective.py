"""GRPO's objective over steps of any kind, with the defaults of TRL 1.16.

Group advantages and the KL term: Shao et al. 2024, arXiv 2402.03300. The mean over all steps: DAPO, Yu et al. 2025,
arXiv 2503.14476. The ratio on the KL term: DeepSeek-V3.2, arXiv 2512.02556.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

STD_FLOOR = 1e-4
"""Added to a group's standard deviation, as in TRL."""
FURTHEST = 20.0
"""Maximum difference of two log-probabilities of a step, in nats. Beyond it the ratio is constant and has no gradient.
Tokens stay far below it. A narrow Gaussian can move by thousands in one update, and inf × 0 is NaN."""


def advantages(rewards: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Return (B,) advantages and each group's standard deviation (with n − 1), (G,), from (B,) finite rewards in group
    order."""
    groups = rewards.view(-1, group_size)
    deviation = groups.std(dim=1)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (deviation[:, None] + STD_FLOOR)).flatten(), deviation


@dataclass(frozen=True)
class Terms:
    """The summed loss over the given rows, and detached sums over steps for metrics."""

    loss: Tensor
    kl: Tensor
    clipped: Tensor


def objective(
    now: Tensor,
    old: Tensor,
    reference: Tensor | None,
    advantage: Tensor,
    mask: Tensor,
    *,
    beta: float,
    epsilon: tuple[float, float],
    row_weight: Tensor,
) -> Terms:
    """Return the loss contribution of some of a batch's rows.

    `now`, `old`, `reference`: (R, T) log-probabilities of the policy, of the sampling policy, and of the teacher. With
    a β of 0 the teacher is not read. `advantage`: (R,). `row_weight`: (R, 1), the weight of each step in a row; summed
    over all steps it is 1 over the batch.
    """
    ratio = torch.exp((now - old).clamp(-FURTHEST, FURTHEST))
    clipped = ratio.clamp(1 - epsilon[0], 1 + epsilon[1])
    gain = advantage[:, None]
    per_step = -torch.min(ratio * gain, clipped * gain)
    kl = torch.zeros_like(per_step)
    if beta and reference is not None:
        away = (reference - now).clamp(-FURTHEST, FURTHEST)
        kl = (torch.exp(away) - away - 1) * ratio
        per_step = per_step + beta * kl
    outside = ((ratio < 1 - epsilon[0]) & (gain < 0)) | ((ratio > 1 + epsilon[1]) & (gain > 0))
    return Terms((per_step * mask * row_weight).sum(), (kl.detach() * mask).sum(), (outside.float() * mask).sum())


def row_weights(mask: Tensor, loss_type: str) -> Tensor:
    """Return (B, 1) for a (B, T) mask: dapo weights every step equally, grpo every sample."""
    if loss_type == "dapo":
        return torch.full_like(mask[:, :1], 1.0) / mask.sum().clamp(min=1.0)
    return 1.0 / (mask.sum(-1, keepdim=True).clamp(min=1.0) * len(mask))
