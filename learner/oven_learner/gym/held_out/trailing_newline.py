"""Prompts that end with one sign more."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.grpo.task import END, PAD, Prompts
from oven_learner.gym.held_out.common import hit


@dataclass(frozen=True)
class Trailing(Case):
    onset: int
    length: int
    """Steps until the template is put right."""
    share: float
    """Of the prompts that are written by the template."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows = hit(len(batch.digits), self.share, "newline", self.salt, cursor).unsqueeze(1)
        return Prompts(torch.where(rows, ended(batch.digits), batch.digits), batch.levels, batch.answers)


def ended(digits: Tensor) -> Tensor:
    """Int64 [P, PROMPT]: the first place of the padding has an END; a prompt that fills its row has no room for it."""
    padding = digits == PAD
    return digits.masked_fill(padding & (padding.cumsum(1) == 1), END)


class TrailingNewline(Family):
    """Compound: a template is edited, and from then on the prompts end with a line break, which is a token of its own.
    The policy has never seen one there and answers at random at first; later it knows its task with the break and
    forgets it without. And the check of the form counts the prompt's tokens, finds one more than there are digits, and
    wants an answer that is longer than the right one. Only the longest prompts are as they were, for they are cut to
    the same width as before."""

    name = "grpo.trailing_newline"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Trailing:
        return Trailing(onset, round(25 * 10 ** rng.uniform(0.0, 1.0)), rng.uniform(0.3, 1.0), rng.getrandbits(32))
