"""The GRPO objective with TRL 1.16's defaults. Group advantages and the KL term are from Shao et al. 2024 (arXiv
2402.03300). The mean over all steps is from DAPO (Yu et al. 2025, arXiv 2503.14476). The multiplication of the KL term
by the ratio is from DeepSeek-V3.2 (arXiv 2512.02556)."""

from __future__ import annotations

import torch
from torch import Tensor

STD_OFFSET = 1e-4  # added to a group's standard deviation, as in TRL
MAX_LOG_RATIO = 20.0
"""Maximum difference between two log-probabilities of a step, in nats. Beyond it the ratio is constant and has no
gradient. Tokens stay far below it. A narrow Gaussian can differ by thousands, and its ratio would overflow."""


def advantages(rewards: Tensor, group_size: int) -> tuple[Tensor, Tensor]:
    """Return the advantage of each sample (B,), and the standard deviation of each group (G,) with divisor n − 1.
    `rewards` (B,) must be finite and in group order."""
    groups = rewards.view(-1, group_size)
    std = groups.std(dim=1)
    centred = groups - groups.mean(dim=1, keepdim=True)
    return (centred / (std[:, None] + STD_OFFSET)).flatten(), std


def objective(
    log_probs: Tensor,
    old_log_probs: Tensor,
    teacher_log_probs: Tensor | None,
    advantage: Tensor,
    mask: Tensor,
    *,
    beta: float,
    epsilon: tuple[float, float],
    row_weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the loss, the KL and the number of clipped steps, each summed over the steps of some rows of a batch. Only
    the loss has a gradient. The log-probabilities (R, T) are those of the policy, of the policy at sampling time, and
    of the teacher. With a β of 0, the teacher is not used. `advantage` is (R,). `row_weight` (R, 1) is the weight of
    each step in a row. The weights of all steps in the batch must sum to 1."""
    ratio = torch.exp((log_probs - old_log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO))
    clipped_ratio = ratio.clamp(1 - epsilon[0], 1 + epsilon[1])
    advantage = advantage[:, None]
    loss = -torch.min(ratio * advantage, clipped_ratio * advantage)
    kl = torch.zeros_like(loss)
    if beta and teacher_log_probs is not None:
        log_ratio = (teacher_log_probs - log_probs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
        kl = (torch.exp(log_ratio) - log_ratio - 1) * ratio
        loss = loss + beta * kl
    clipped_below = (ratio < 1 - epsilon[0]) & (advantage < 0)
    clipped_above = (ratio > 1 + epsilon[1]) & (advantage > 0)
    clipped_steps = ((clipped_below | clipped_above).float() * mask).sum()
    return (loss * mask * row_weight).sum(), (kl.detach() * mask).sum(), clipped_steps


def row_weights(mask: Tensor, loss_type: str) -> Tensor:
    """Return the weight of each step in a row, (B, 1), for a mask (B, T). For "dapo" all steps have the same weight.
    For "grpo" all samples have the same total weight."""
    if loss_type == "dapo":
        return torch.full_like(mask[:, :1], 1.0) / mask.sum().clamp(min=1.0)
    return 1.0 / (mask.sum(-1, keepdim=True).clamp(min=1.0) * len(mask))
