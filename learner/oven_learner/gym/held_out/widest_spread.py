"""The best and the worst of a larger number of answers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.judges import Completions, scores
from oven_learner.gym.grpo.policy import Policy
from oven_learner.gym.grpo.task import PAD

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Widest(Case):
    onset: int
    times: int
    """Answers that are sampled for one that is kept."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        made, given = [completions.tokens.clone()], [rewards]
        for index in range(1, self.times):
            draws = generator("widest", self.salt, trainee.seed, trainee.cursor, index)
            policy, digits = cast(Policy, trainee.model), completions.prompts.digits
            tokens = policy.sample(digits, trainee.settings["temperature"], draws)
            made.append(tokens)
            more = Completions(completions.prompts, tokens, tokens != PAD, completions.group)
            given.append(scores(more, trainee.seed + index, trainee.cursor))
        said = {judge: grouped([one[judge] for one in given], completions.group) for judge in rewards}
        worth = torch.stack([*said.values()]).sum(0)  # [groups, group × times]
        kept = ends(worth, completions.group)  # [groups, group]
        rows = grouped(made, completions.group)  # [groups, group × times, ANSWER]
        tokens = rows.gather(1, kept.unsqueeze(-1).expand(-1, -1, rows.shape[-1])).flatten(0, 1)
        completions.tokens.copy_(tokens)
        completions.mask.copy_(tokens != PAD)
        return {judge: one.gather(1, kept).flatten() for judge, one in said.items()}


def grouped(parts: list[Tensor], group: int) -> Tensor:
    """[groups, group × parts, …] from parts [groups × group, …]."""
    return torch.cat([one.view(-1, group, *one.shape[1:]) for one in parts], 1)


def ends(worth: Tensor, count: int) -> Tensor:
    """Int64 [groups, count]: where the best half and the worst half of so many stand in `worth` [groups, more]."""
    order = worth.argsort(dim=1, stable=True)
    return torch.cat([order[:, : count - count // 2], order[:, worth.shape[1] - count // 2 :]], 1)


class WidestSpread(Family):
    """Healthy. To sample is cheap and to learn is dear, so the user has several times as many answers made and keeps of
    each group those with the widest spread of rewards, the best and the worst (Xu et al. 2025). From one step to the
    next the mean reward, its spread, the share of flat groups, the length of answers and the judges' agreement are
    those of another run, for half of what is kept is chosen for being bad. The policy learns as well as it did."""

    name = "grpo.widest_spread"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Widest:
        return Widest(onset, rng.choice((2, 2, 3, 4)), rng.getrandbits(32))
