"""How long an episode is, when its fault sets in, and which one it is."""

from __future__ import annotations

from random import Random

from oven_bench.gym.fault import Fault

PREFIX, LATEST = 100, 130
"""The first and the last gradient step that a fault may set in at; what comes before is healthy."""
HORIZON = 100
"""Gradient steps from the onset to the end, those that a rollback or a trial throws away included, unless another
number is asked for (`gym --horizon`)."""


def drawn(family: type[Fault], seed: int) -> Fault:
    """The case of a family's seed: the same in every process and for every arm."""
    rng = Random(f"{family.name} {seed}")
    return family.draw(rng, rng.randint(PREFIX, LATEST))


def end(case: Fault, horizon: int = HORIZON) -> int:
    """The gradient step that the episode ends with."""
    return case.onset + horizon


def max_steps(horizon: int = HORIZON) -> int:
    """What every run announces as its length, whenever its fault sets in: an onset that showed there would be told."""
    return LATEST + horizon
