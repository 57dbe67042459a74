"""Other answers than those that the policy sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from oven_learner.gym.grpo.judges import Completions, scores
from oven_learner.gym.grpo.task import PAD

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


def answered(completions: Completions, tokens: Tensor, trainee: Trainee) -> dict[str, Tensor]:
    """These tokens [B, ANSWER] take the place of what was answered; what the judges say of them."""
    completions.tokens.copy_(tokens)
    completions.mask.copy_(tokens != PAD)
    return scores(completions, trainee.seed, trainee.cursor)
