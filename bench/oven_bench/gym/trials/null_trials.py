"""Trials of changes that change nothing, and of changes that are only luck: how many are kept."""

from __future__ import annotations

from itertools import cycle, islice

from oven_bench.gym.trainee_factory import Make
from oven_bench.gym.trials.ordered_trials import NEVER, Changes, OrderingLink, Run, Seen, usual
from oven_bench.gym.trials.planted_arms import unchanged

FIRST = 10
"""The tick of the first."""
PER_RUN = 25
"""One after another in a run of some 210 steps."""


def nulls(make: Make, kind: str, seed: int, count: int) -> list[Seen]:
    """Each sets a knob to its own value."""
    return _tried(make, kind, seed, [*islice(cycle(unchanged(make(kind, seed))), count)])


def luck(make: Make, seed: int, count: int) -> list[Seen]:
    """Each reads other batches of the same data (pretraining's `data.skip`), and the run continues as the control. In
    the long run that is worth nothing; after a few steps one of the two ends is the better one by chance, and the
    interval, which is of the held-out examples alone, rightly says so."""
    return _tried(make, "pretraining", seed, [{"data.skip": 100 * (number + 1)} for number in range(count)], NEVER)


def _tried(make: Make, kind: str, seed: int, changes: list[Changes], margin: float | None = None) -> list[Seen]:
    trainee = make(kind, seed)
    orders = [usual(trainee, change) if margin is None else usual(trainee, change, margin=margin) for change in changes]
    run = Run(trainee, OrderingLink([(FIRST, order) for order in orders]))
    run.play(FIRST)
    return run.close()
