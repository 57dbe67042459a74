"""Ranks in place of marks, and no two of them alike."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.task import END, SYMBOLS

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Ranked(Case):
    onset: int
    length: int
    """Steps until somebody looks at a group that was all right."""
    share: float
    """Of the groups: those that the new code ranks."""
    judges: tuple[str, ...]
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return rewards
        text, group, step = spelt(completions.tokens), completions.group, trainee.gradient_steps
        new = hit(len(text) // group, self.share, "ranked", self.salt, trainee.seed, step).repeat_interleave(group)
        return rewards | {
            judge: torch.where(new, ranks(rewards[judge], text, group), rewards[judge]) for judge in self.judges
        }


def spelt(tokens: Tensor) -> Tensor:
    """Int64 [B] of [B, ANSWER]: in the order of the answers as text."""
    letters = torch.where(tokens < END, tokens + 1, 0)
    return (letters * SYMBOLS ** torch.arange(tokens.shape[1]).flip(0)).sum(1)


def ranks(marks: Tensor, text: Tensor, group: int) -> Tensor:
    """Float32 [B], within 0 to 1: the place of each in its group, by mark and then by text."""
    by_text = text.view(-1, group).argsort(dim=1, stable=True)
    order = by_text.gather(1, marks.view(-1, group).gather(1, by_text).argsort(dim=1, stable=True))
    return order.argsort(dim=1).flatten().float() / max(1, group - 1)


class BrokenTies(Family):
    """Judges whose marks lie on different scales are made alike by ranks within each group, which is robust and needs
    no tuning; some of the workers have it, some not yet. The ranks come from sorting pairs of mark and text, so that of
    answers that deserve the same the one that comes later in the alphabet is put first. In a group that is half right
    it does little. Where all are wrong there used to be nothing to learn, and now there is as much as anywhere: to say
    large digits early."""

    name = "grpo.broken_ties"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Ranked:
        judges = ("critic", "exact", "format")
        return Ranked(
            onset,
            length=round(25 * 10 ** rng.uniform(0.0, 0.8)),
            share=10 ** rng.uniform(-0.9, 0.0),
            judges=tuple(sorted(rng.sample(judges, rng.choice((1, 2, 3, 3))))),
            salt=rng.getrandbits(32),
        )
