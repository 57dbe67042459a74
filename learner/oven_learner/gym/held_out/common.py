"""What several of these faults share: which rows are hit, a step's inputs, and the policy's step computed once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, generator
from oven_learner.gym.grpo.judges import judged, scores
from oven_learner.gym.grpo.loss import advantages, kl, policy_loss
from oven_learner.gym.grpo.task import PAD

if TYPE_CHECKING:
    from oven_learner.gym.grpo.trainee import Grpo
    from oven_learner.gym.pretraining.trainee import Pretraining
    from oven_learner.gym.trainee import Trainee


def hit(count: int, share: float, *seed: object) -> Tensor:
    """Bool [count]: each is true with a chance of `share`, the same ones for the same seed."""
    return torch.rand(count, generator=generator(*seed)) < share


def pairs(trainee: Trainee) -> tuple[Tensor, Tensor]:
    """Inputs and targets of this step of pretraining, each int64 [B, LENGTH]."""
    rows = cast("Pretraining", trainee)._read()
    return rows[:, :-1], rows[:, 1:]


@dataclass(frozen=True, slots=True)
class Step:
    """What GRPO's loss is made of, for the N tokens of the answers that were scored."""

    answers: Tensor  # int64 [B, ANSWER]
    tokens: Tensor  # int64 [N]
    rows: Tensor  # int64 [N]: the answer that a token is of
    credit: Tensor  # float32 [N]
    log_probs: Tensor  # float32 [N], with a gradient
    reference: Tensor  # float32 [N]

    def loss(self, beta: float, sampled: Tensor, counted: Tensor) -> Tensor:
        """Over the tokens that are counted (bool [N]), with these log-probabilities [N] as those of the sampler."""
        mine = self.log_probs[counted]
        return policy_loss(mine, sampled[counted], self.credit[counted]) + beta * kl(mine, self.reference[counted])


def again(trainee: Trainee, case: Case) -> Step:
    """This step's answers, sampled and judged as they were: the same, for the weights and the position are."""
    run = cast("Grpo", trainee)
    completions = run._sampled(case)
    given = case.rewards(scores(completions, run.seed, run.cursor), completions, run)
    verdict = judged(given, run._knobs.simplex("reward.weights"), completions.group)
    kept = verdict.scored.repeat_interleave(completions.group)
    digits, answers = completions.prompts.digits[kept], completions.tokens[kept]
    mask = answers != PAD
    tokens = answers[mask]
    with torch.no_grad():
        reference = run._reference(digits, answers).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return Step(
        answers,
        tokens,
        rows=mask.nonzero()[:, 0],
        credit=advantages(verdict.rewards[verdict.scored]).view(-1, 1).expand(mask.shape)[mask],
        log_probs=run._policy(digits, answers).gather(-1, tokens.unsqueeze(-1)).squeeze(-1),
        reference=reference,
    )
