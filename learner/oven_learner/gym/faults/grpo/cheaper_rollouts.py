"""Rollouts that somebody made cheaper."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.grpo.judges import scores
from oven_learner.gym.grpo.task import PAD

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Cheaper(Case):
    onset: int
    tokens: int
    """At most, of a completion."""
    price: float
    """Of a token, off every score."""
    prompts: float
    """The share of the prompts of a step that are left."""

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset and "prompts" in trainee.settings:
            trainee.settings["prompts"] = float(max(2, round(self.prompts * trainee.settings["prompts"])))

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        """The judges see, and the loss takes, what is left of the completions."""
        if trainee.gradient_steps < self.onset:
            return rewards
        completions.tokens[:, self.tokens :] = PAD
        completions.mask[:, self.tokens :] = False
        cost = self.price * completions.mask.sum(1)
        return {judge: score - cost for judge, score in scores(completions, trainee.seed, trainee.cursor).items()}


class CheaperRollouts(Family):
    """Compound: to save on inference, completions are cut at fewer tokens than the longest answers have, each token has
    a price, and a step has fewer prompts. Right answers that are cut count as wrong ones (Yu et al. 2025, "DAPO: An
    Open-Source LLM Reinforcement Learning System at Scale", on the noise of truncated samples), and to stop early
    pays."""

    name = "grpo.cheaper_rollouts"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Cheaper:
        return Cheaper(onset, rng.randint(4, 7), rng.uniform(0.0, 0.3), rng.uniform(0.2, 1.0))
