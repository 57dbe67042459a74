"""What GRPO's loss makes of the tokens of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case
from oven_learner.gym.grpo.judges import judged, scores
from oven_learner.gym.grpo.loss import advantages, kl, policy_loss

if TYPE_CHECKING:
    from oven_learner.gym.grpo.trainee import Grpo
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True, slots=True)
class Credit:
    """The N tokens of the answers that were scored in a step, row by row."""

    answers: Tensor  # int64 [B, ANSWER]; the rows of a group lie together
    group: int
    mask: Tensor  # bool [B, ANSWER]: the N tokens
    rewards: Tensor  # float32 [groups, group]: of the groups that were scored
    credit: Tensor  # float32 [N]
    log_probs: Tensor  # float32 [N], with a gradient
    reference: Tensor  # float32 [N]
    beta: float

    def loss(self, credit: Tensor, counted: Tensor | None = None) -> Tensor:
        """With another credit [N], over all tokens or those that are counted (bool [N])."""
        kept = torch.ones_like(credit, dtype=torch.bool) if counted is None else counted
        mine = self.log_probs[kept]
        return policy_loss(mine, mine.detach(), credit[kept]) + self.beta * kl(mine, self.reference[kept])


def credited(trainee: Trainee, case: Case) -> Credit:
    """The step's answers are sampled and judged again, which gives the same ones: weights and position are the same."""
    run = cast("Grpo", trainee)
    completions = run._sampled(case)
    given = case.rewards(scores(completions, run.seed, run.cursor), completions, run)
    verdict = judged(given, run._knobs.simplex("reward.weights"), completions.group)
    scored = verdict.scored.repeat_interleave(completions.group)
    digits, answers, mask = (
        part[scored] for part in (completions.prompts.digits, completions.tokens, completions.mask)
    )
    tokens = answers[mask].unsqueeze(-1)
    with torch.no_grad():
        reference = run._reference(digits, answers).gather(-1, tokens).squeeze(-1)
    rewards = verdict.rewards[verdict.scored]
    return Credit(
        answers,
        completions.group,
        mask,
        rewards,
        credit=advantages(rewards).view(-1, 1).expand(mask.shape)[mask],
        log_probs=run._policy(digits, answers).gather(-1, tokens).squeeze(-1),
        reference=reference,
        beta=run._knobs.beta,
    )
