"""Prompts behind which the rest of an older one still stands."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit, within
from oven_learner.gym.grpo.task import PAD, Prompts, pools


@dataclass(frozen=True)
class Uncleared(Case):
    onset: int
    length: int
    """Batches until the buffers are cleared again."""
    share: float
    """Of the slots that a longer prompt was in before."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not within(cursor, self.onset, self.length):
            return batch
        longest = pools()[-1].digits
        count = len(batch.digits)
        before = longest[torch.randint(len(longest), (count,), generator=generator("slots", self.salt, cursor))]
        used = hit(count, self.share, "used", self.salt, cursor).unsqueeze(1)
        digits = torch.where(used & (batch.digits == PAD), before, batch.digits)
        return Prompts(digits, batch.levels, batch.answers)


class UnclearedBuffer(Family):
    """The loader keeps its buffers to save time, and in its new version it no longer clears them. A prompt that is
    shorter than the one that was in its slot before has the last digits of that one behind its own. The right answer is
    that to the prompt as it should be, the check of the form counts all digits that stand there, and the policy cannot
    know which of them are meant. Only the longest prompts are whole; but even of those it no longer knows how much to
    say."""

    name = "grpo.uncleared_buffer"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Uncleared:
        return Uncleared(onset, round(15 * 10 ** rng.uniform(0.0, 1.2)), rng.uniform(0.2, 1.0), rng.getrandbits(32))
