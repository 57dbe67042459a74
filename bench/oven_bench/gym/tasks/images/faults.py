"""What goes wrong in a loop over pictures, and ways to run it that are right."""

from __future__ import annotations

import torch

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.seeded_draws import chance, integer, log_uniform, random_seed, uniform, whole
from oven_bench.gym.tasks.images.drawing import CLASSES, Pictures
from oven_bench.gym.usual_mistakes import (
    DividedRate,
    FromTheStart,
    LossNotANumber,
    MultipliedDecay,
    MultipliedRate,
)


@fault("images.healthy", written="trials set", healthy=True)
class Healthy(Fault):
    """Nothing is wrong, and nothing is new."""


@fault("images.small_batches", written="trials set", healthy=True, source="Goyal et al. 2017 (arXiv 1706.02677)")
class SmallBatches(FromTheStart):
    """The user has a small machine: small batches from the start, and a rate that is lower in proportion."""

    pictures: int = whole(32, 8)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.pictures / step.settings["batch"]
        step.settings["batch"] = self.pictures


@fault("images.early_milestone", written="trials set", healthy=True)
class EarlyMilestone(MultipliedRate):
    """The user lets the rate fall a step earlier than the schedule does: the loss drops at once, and then is flat."""

    factor: float = uniform(0.5, 0.2)


@fault("images.rate_too_high", written="trials set")
class RateTooHigh(MultipliedRate):
    """The learning rate is set too high by a power of ten or so, and stays so."""

    factor: float = log_uniform(8, 80)


@fault("images.rate_too_low", written="trials set")
class RateTooLow(DividedRate):
    """The learning rate is too low from the start, as one that was tuned for Adam: the run crawls."""

    divisor: float = log_uniform(5, 50)


@fault("images.weight_decay_too_strong", written="trials set")
class WeightDecayTooStrong(MultipliedDecay):
    """The weight decay is far too strong, and stays so. It is part of the gradient, and of the momentum."""

    factor: float = log_uniform(100, 1000)


@fault("images.flipped_labels", written="trials set", source="Zhang et al. 2017 (arXiv 1611.03530)")
class FlippedLabels(Fault):
    """For a stretch of the data most labels are wrong: each class has another's name, or names are drawn."""

    length: int = whole(15, 60)
    share: float = uniform(0.5, 1.0)
    drawn: bool = chance(0.5)
    shift: int = integer(1, len(CLASSES) - 1)
    seed: int = random_seed()

    def batch(self, batch: Pictures, step: Step) -> Pictures:
        count = len(batch.labels)
        others = torch.randint(len(CLASSES), (count,), generator=self.draws("label", step.cursor))
        wrong = others if self.drawn else (batch.labels + self.shift) % len(CLASSES)
        return batch._replace(labels=torch.where(self.struck(count, "wrong", step.cursor), wrong, batch.labels))


@fault("images.unscaled_pixels", written="trials set")
class UnscaledPixels(Fault):
    """For a stretch of the data pixels are not scaled and not centred, as where one loader lacks a transform. The batch
    normalisation hides it from the loss, and its running statistics take it in."""

    length: int = whole(40, 100)
    factor: float = log_uniform(4, 255)

    def batch(self, batch: Pictures, step: Step) -> Pictures:
        return batch._replace(pixels=batch.pixels * self.factor + self.factor / 2)


@fault("images.sorted_classes", written="trials set")
class SortedClasses(Fault):
    """From the onset on pictures come sorted by class, since the shuffling was lost: each batch has one or two classes,
    and what it teaches is mostly which."""

    classes: int = integer(1, 2)
    run: int = whole(1, 4)  # batches of a class

    def batch(self, batch: Pictures, step: Step) -> Pictures:
        first = step.batches_since // self.run % len(CLASSES)
        rows = ((batch.labels - first) % len(CLASSES) < self.classes).nonzero().flatten()
        if not len(rows):
            return batch
        rows = rows.repeat(-(-len(batch.labels) // len(rows)))[: len(batch.labels)]
        return Pictures(batch.pixels[rows], batch.labels[rows])


@fault("images.not_a_number", written="trials set")
class NotANumber(LossNotANumber):
    """The loss of one step is not a number. Nothing in the loop skips such a step: the weights are gone."""

    length: int = 1
