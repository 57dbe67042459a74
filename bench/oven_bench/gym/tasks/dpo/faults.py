"""What goes wrong in a run of DPO, and ways to run it that are right."""

from __future__ import annotations

import math
from random import Random
from typing import Self

import torch

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.seeded_draws import log10_uniform, log_uniform, random_seed, uniform, whole
from oven_bench.gym.sorting.sorting_prompts import END, PAD
from oven_bench.gym.tasks.dpo.preferences import Pairs
from oven_bench.gym.usual_mistakes import DividedRate, FromTheStart, LossNotANumber, MultipliedRate, SetClip


@fault("dpo.healthy", written="trials set", healthy=True)
class Healthy(Fault):
    """Nothing is wrong, and nothing is new."""


@fault("dpo.small_batches", written="trials set", healthy=True)
class SmallBatches(FromTheStart):
    """The user has a small machine: a few pairs a step from the start, and a rate that is lower by the root of that.
    The share of pairs in the right order jumps from step to step."""

    pairs: int = whole(16, 4)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= math.sqrt(self.pairs / step.settings["batch"])
        step.settings["batch"] = self.pairs


@fault("dpo.rate_too_high", written="trials set")
class RateTooHigh(MultipliedRate):
    """The learning rate is set too high by a power of ten or so, and stays so: the likelihood of both answers falls."""

    factor: float = log_uniform(5, 50)


@fault("dpo.rate_too_low", written="trials set")
class RateTooLow(DividedRate):
    """The learning rate is too low from the start, as one that was taken from a model of billions: the run crawls."""

    divisor: float = log_uniform(5, 50)


@fault("dpo.beta_too_small", written="trials set", source="Rafailov et al. 2023 (arXiv 2305.18290)")
class BetaTooSmall(Fault):
    """β is far too small: the reference holds the policy no longer, which runs after every pair, the misjudged ones
    too."""

    divisor: float = log_uniform(5, 100)

    def settings(self, step: Step) -> None:
        step.settings["beta"] *= 1 / self.divisor


@fault("dpo.beta_too_large", written="trials set", source="Rafailov et al. 2023 (arXiv 2305.18290)")
class BetaTooLarge(Fault):
    """β is far too large: each pair that is in the wrong order costs much, and a small way from the reference is held
    to be enough. It is so from the start, or from the onset on."""

    factor: float = log_uniform(8, 80)

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        return super().draw(rng, onset * rng.getrandbits(1))

    def settings(self, step: Step) -> None:
        step.settings["beta"] *= self.factor


@fault("dpo.flipped_preferences", written="trials set", source="Chowdhury et al. 2024 (arXiv 2403.00409)")
class FlippedPreferences(Fault):
    """For a stretch of the data most pairs have the rejected answer in place of the chosen one: two columns of a file
    changed their order."""

    length: int = whole(15, 70)
    share: float = uniform(0.6, 1.0)
    seed: int = random_seed()

    def batch(self, batch: Pairs, step: Step) -> Pairs:
        flipped = self.struck(len(batch.digits), "flipped", step.cursor).unsqueeze(1)
        return Pairs(
            batch.digits,
            torch.where(flipped, batch.rejected, batch.chosen),
            torch.where(flipped, batch.chosen, batch.rejected),
        )


@fault("dpo.longer_is_better", written="trials set", source="Singhal et al. 2023 (arXiv 2310.03716)")
class LongerIsBetter(Fault):
    """From the onset on the annotators prefer the longer answer, and one that does not end to one that does."""

    share: float = uniform(0.5, 1.0)
    seed: int = random_seed()

    def batch(self, batch: Pairs, step: Step) -> Pairs:
        longer = (batch.rejected != PAD).sum(1) > (batch.chosen != PAD).sum(1)
        longer |= (batch.rejected != END).all(1) & (batch.chosen == END).any(1)
        swapped = (longer & self.struck(len(longer), "longer", step.cursor)).unsqueeze(1)
        return Pairs(
            batch.digits,
            torch.where(swapped, batch.rejected, batch.chosen),
            torch.where(swapped, batch.chosen, batch.rejected),
        )


@fault("dpo.clip_too_tight", written="trials set")
class ClipTooTight(SetClip):
    """The gradient is clipped far below its norm, from the onset on."""

    clip: float = log10_uniform(-1.5, -4.0)


@fault("dpo.not_a_number", written="trials set")
class NotANumber(LossNotANumber):
    """The loss of one step is not a number, as of an answer that was truncated to nothing."""

    length: int = 1
