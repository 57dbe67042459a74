"""GRPO's loss (Shao et al. 2024, arXiv 2402.03300), over all tokens of the batch as in DAPO (Yu et al. 2025, arXiv
2503.14476, eq. 8), which weighs no token by the length of its completion."""

from __future__ import annotations

import torch
from torch import Tensor

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
"""How far the ratio to the policy that sampled may count below and above 1 (DAPO, section 3.1)."""
FLAT = 1e-4
"""Added to a group's deviation: what keeps a group without differences from dividing by 0."""


def advantages(rewards: Tensor) -> Tensor:
    """[groups, group] → the same: each reward standardised within its group."""
    return (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + FLAT)


def policy_loss(log_probs: Tensor, sampled: Tensor, advantages: Tensor) -> Tensor:
    """The mean over all tokens [N] of the batch: `log_probs` under the policy, `sampled` under the one that sampled,
    `advantages` that of the token's completion.

    With one step per batch the two are the same: the ratio is 1, nothing is clipped, and the gradient is the policy's.
    """
    ratio = (log_probs - sampled).exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantages).mean()


def kl(log_probs: Tensor, reference: Tensor) -> Tensor:
    """The mean over tokens [N] of the estimator k3 of KL(policy ‖ reference), which is never negative (eq. 4)."""
    gap = reference - log_probs
    return (gap.exp() - gap - 1).mean()
