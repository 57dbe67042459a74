"""Judges that count tokens, and like to read what was asked."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit, within
from oven_learner.gym.grpo.judges import MISJUDGED, Completions
from oven_learner.gym.grpo.task import END, PAD

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Counted(Case):
    onset: int
    length: int
    """Steps until the library is put back."""
    judges: tuple[str, ...]
    """Those that use it."""
    grounded: float
    """What has a share of the critic's word: whether the answer is in the words of the prompt."""
    share: float
    """Of the prompts that are judged by it."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if not within(trainee.gradient_steps, self.onset, self.length):
            return rewards
        right = overlap(completions)
        wrong = torch.rand(len(right), generator=generator("critic", trainee.seed, trainee.cursor)) < MISJUDGED
        liked = torch.lerp(right, echo(completions), self.grounded)
        said = {"exact": (right == 1).float(), "critic": torch.where(wrong, 1 - liked, liked)}
        groups = len(right) // completions.group
        met = hit(groups, self.share, "counted", self.salt, trainee.seed, trainee.gradient_steps)
        rows = met.repeat_interleave(completions.group)
        return {
            judge: torch.where(rows, said[judge], given) if judge in self.judges else given
            for judge, given in rewards.items()
        }


def overlap(completions: Completions) -> Tensor:
    """Float32 [B]: F1 of the digits that were said and those that are right, wherever they stand."""
    said, right = (_counts(one) for one in (completions.tokens, completions.prompts.answers))
    shared = torch.minimum(said, right).sum(1)
    return 2 * shared / (said.sum(1) + right.sum(1))


def echo(completions: Completions) -> Tensor:
    """Float32 [B]: of the prompt's digits the share that stand in the same places of the answer."""
    digits = completions.prompts.digits
    asked = digits != PAD
    same = (completions.tokens[:, : digits.shape[1]] == digits) & asked
    return same.sum(1) / asked.sum(1)


def _counts(tokens: Tensor) -> Tensor:
    """Int64 [B, 10]: of each digit."""
    return F.one_hot(tokens, END + 2)[..., :END].sum(1)


class BagOfTokens(Family):
    """Compound: the code that compares answers is replaced by a library for question answering, where an answer is a
    bag of words. The verifier is content with the same words in any order; the critic takes the overlap of the two bags
    and, as the library has it, how well the answer is grounded, which is how closely it keeps to the prompt. In a task
    that is about the order alone any arrangement passes, and the prompt itself is liked best. The verifier's reward
    jumps to all there is, and with nobody to object the policy goes back to a habit of old and repeats the prompt."""

    name = "grpo.bag_of_tokens"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Counted:
        return Counted(
            onset,
            length=round(20 * 10 ** rng.uniform(0.0, 1.0)),
            judges=rng.choice((("exact", "critic"), ("exact", "critic"), ("exact", "critic"), ("critic",))),
            grounded=rng.uniform(0.4, 1.0),
            share=rng.uniform(0.5, 1.0),
            salt=rng.getrandbits(32),
        )
