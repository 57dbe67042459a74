"""Whether a trial's 95 % interval holds the true effect of the change as often as it says.

An effect is planted by changing a setting for a trial's steps; its true size is measured at the same ends of the same
branches, on a population of held-out examples. The trial reads a sample of it, drawn anew for each trial, with
replacement, as large as the task's own evaluation; so the samples are independent, and the true effect is exactly the
mean of what is drawn from. Further samples of the same two ends are drawn afterwards and read by the same function.
What an interval says nothing of: other batches would have given other ends (`luck` measures that).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean

from oven_bench.gym.fault import Trainee
from oven_bench.gym.trainee_factory import Make
from oven_bench.gym.trials.ordered_trials import NEVER, OrderingLink, Run, Seen, sign, usual
from oven_bench.gym.trials.planted_arms import effects
from oven_bench.gym.trials.populations import POPULATIONS
from oven_learner.trials import comparison

FIRST = 15
"""The tick of a run's first trial; the others follow it, so that each begins somewhere else."""
WIDTH = 1.96
"""Standard errors on either side."""
SMALL, LARGE = 1.0, 3.0
"""Bounds of small, middling and large effects, in standard errors of a sample."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One trial's: the true gain, and (gain, standard error) of each sample; the trial's own is the first."""

    kind: str
    truth: float
    samples: Sequence[tuple[float, float]]

    @property
    def covered(self) -> list[bool]:
        return [abs(gain - self.truth) <= WIDTH * error for gain, error in self.samples]

    @property
    def size(self) -> float:
        """In standard errors."""
        error = fmean(error for _, error in self.samples)
        return abs(self.truth) / error if error else 0.0


class Sample:
    """Reads, in place of a training's own examples, as many that are drawn from a population: the same ones for both
    arms of a trial."""

    def __init__(self, trainee: Trainee, rng: Random) -> None:
        self.ends: list[list[float]] = []
        """The whole population at each reading."""
        self.kind = trainee.kind
        self.sign = sign(trainee)
        self._trainee, self._rng = trainee, rng
        self._count = len(trainee.examples())
        self._drawn: list[int] = []

    def __call__(self) -> Sequence[float]:
        values = POPULATIONS[self._trainee.kind](self._trainee)
        if len(self.ends) % 2 == 0:
            self._drawn = self.draw(len(values))
        self.ends.append(values)
        return [values[index] for index in self._drawn]

    def draw(self, size: int) -> list[int]:
        """Places in the population."""
        return self._rng.choices(range(size), k=self._count)


def effects_of(make: Make, kind: str, seed: int, rounds: int, draws: int) -> tuple[list[Effect], list[Seen]]:
    """Of one run, in which each of the planted changes is tried so often, and none is kept. Changes that moved no
    example are left out. Raises RuntimeError for a trial that did not come to its end."""
    rng = Random(f"effects {kind} {seed}")
    trainee = make(kind, seed)
    sample = Sample(trainee, rng)
    changes = [change for _ in range(rounds) for change in rng.sample(effects(kind), len(effects(kind)))]
    link = OrderingLink([(FIRST, usual(trainee, change, margin=NEVER)) for change in changes])
    run = Run(trainee, link, lambda _: sample)
    run.play(FIRST)
    ended = run.close()
    if failed := [seen for seen in ended if len(seen.ended.arms) != 2 or seen.ended.arms[1].gain is None]:
        raise RuntimeError(f"the trial of {failed[0].order.arms} was {failed[0].ended.status}: {failed[0].ended}")
    found = [
        _effect(seen, control, changed, sample, draws)
        for seen, control, changed in zip(ended, sample.ends[::2], sample.ends[1::2], strict=True)
        if control != changed
    ]
    return found, ended


def _effect(seen: Seen, control: Sequence[float], changed: Sequence[float], sample: Sample, draws: int) -> Effect:
    own = seen.ended.arms[1]
    samples = [(own.gain or 0.0, own.noise or 0.0)]
    for _ in range(draws - 1):
        places = sample.draw(len(control))
        found = comparison.reading([changed[at] for at in places], [control[at] for at in places], sample.sign)
        samples.append((found.gain or 0.0, found.noise or 0.0))
    return Effect(sample.kind, sample.sign * (fmean(changed) - fmean(control)), samples)
