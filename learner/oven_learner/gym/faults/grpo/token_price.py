"""A price on tokens, in place of the check of the form."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Priced(Case):
    onset: int
    price: float
    """Of a token, taken from what each judge says."""
    form: float
    """The weight that is left to the check of the form."""

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            trainee.settings["reward.weights/format"] = self.form

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        return {judge: said - self.price * completions.lengths for judge, said in rewards.items()}


class TokenPrice(Family):
    """Compound: answers cost money, so the user takes a little off the reward for each token; and as answers that run
    on are now dear by themselves, the check of the form is all but dropped. The price was found on a reward of another
    range, and is higher than what the last digits of a long answer bring in. Hard prompts are given up first: the
    answer stops early, and no judge of weight minds."""

    name = "grpo.token_price"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Priced:
        return Priced(onset, rng.uniform(0.12, 0.36), rng.choice((0.0, 0.05)))
