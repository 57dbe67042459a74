"""What GRPO's loss makes of the tokens of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor

from oven_learner.gym.fault import Case
from oven_learner.gym.grpo.judges import judged, scores
from oven_learner.gym.grpo.loss import advantages
from oven_learner.gym.grpo.policy import Policy

if TYPE_CHECKING:
    from oven_learner.gym.grpo.trainee import Grpo
    from oven_learner.gym.trainee import Trainee


def credited(trainee: Trainee) -> tuple[Tensor, Tensor]:
    """Of each token that this step of GRPO sampled, row by row, the log-probability and the advantage, each [N]; where
    no fault changes the prompts, the answers or the rewards."""
    grpo = cast("Grpo", trainee)
    completions = grpo._sampled(Case())
    given = scores(completions, grpo.seed, grpo.cursor)
    verdict = judged(given, grpo._knobs.simplex("reward.weights"), completions.group)
    mask = completions.mask
    credit = advantages(verdict.rewards).view(-1, 1).expand(mask.shape)[mask]
    said: Tensor = cast(Policy, grpo.model)(completions.prompts.digits, completions.tokens)
    return said.gather(-1, completions.tokens[mask].unsqueeze(-1)).squeeze(-1), credit
