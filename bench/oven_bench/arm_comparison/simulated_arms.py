"""Simulated arms of known difference: logits of success with effects of seed, task and cell, shared and by arm."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from oven_bench.arm_comparison.clustered import mean_squares
from oven_bench.arm_comparison.detectable import Design, VarianceParts

_GRID = 500
"""Seeds, and tasks, from which a setting's true variances are taken."""
_SHIFTS = np.linspace(-4.0, 4.0, 321)
"""Of one arm's logits: the differences between are interpolated."""
_POINTS, _WEIGHTS = np.polynomial.hermite_e.hermegauss(81)
"""Quadrature over a standard normal: exact to many digits for so smooth a function."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Standard deviations of logits. What both arms share (how hard a task is, how well a seed began) drops out of the
    difference; what each arm has for itself does not."""

    name: str
    logit: float
    """Of the mean task."""
    task: float = 1.5
    seed: float = 0.3
    arm_seed: float = 0.0
    arm_task: float = 0.0
    arm_cell: float = 0.0


SETTINGS: tuple[Setting, ...] = (
    Setting("samples alone", -0.4),
    Setting("seeds differ", -0.4, arm_seed=0.25),
    Setting("tasks differ", -0.4, arm_task=0.4),
    Setting("both differ", -0.4, arm_seed=0.15, arm_task=0.3, arm_cell=0.3),
    Setting("hard tasks", -1.6, arm_seed=0.1, arm_task=0.2, arm_cell=0.2),
)
"""From what a paired experiment may at best be spoilt by, its samples, to all at once."""


class SimulatedArms:
    """One setting, with its true differences and variance parts."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self._seed = seed
        # Both arms' logits have one distribution, so that the difference is an integral over one normal.
        spread = (setting.task, setting.seed, setting.arm_seed, setting.arm_task, setting.arm_cell)
        logits = setting.logit + math.hypot(*spread) * _POINTS
        weights = _WEIGHTS / _WEIGHTS.sum()
        rates = expit(logits[None, :] + _SHIFTS[:, None]) @ weights
        self._differences = rates - expit(logits) @ weights

    def shift_for(self, difference: float) -> float:
        """By how much one arm's logits are raised for this true difference of rates."""
        return float(np.interp(difference, self._differences, _SHIFTS))

    def difference_at(self, shift: float) -> float:
        """The true difference of rates."""
        return float(np.interp(shift, _SHIFTS, self._differences))

    def parts(self, shift: float = 0.0) -> VarianceParts:
        """The true variance parts of a difference."""
        one, other = self._logits(np.random.default_rng([self._seed, _GRID]), _GRID, _GRID)
        rates, base = expit(one + shift), expit(other)
        found = mean_squares(rates - base)
        return VarianceParts(
            seed=max(0.0, (found.seed - found.cell) / _GRID),
            task=max(0.0, (found.task - found.cell) / _GRID),
            cell=found.cell,
            sample=float((rates * (1 - rates) + base * (1 - base)).mean()),
            rate=float(base.mean()),
        )

    def draw(
        self, rng: np.random.Generator, design: Design, shift: float
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Two arms [seeds, tasks, samples], the first one's logits raised by `shift`."""
        one, other = self._logits(rng, design.seeds, design.tasks)
        size = (design.seeds, design.tasks, design.samples)
        return rng.random(size) < expit(one + shift)[..., None], rng.random(size) < expit(other)[..., None]

    def _logits(
        self, rng: np.random.Generator, seeds: int, tasks: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        of = self.setting
        shared = of.logit + rng.normal(0, of.task, (1, tasks)) + rng.normal(0, of.seed, (seeds, 1))
        one, other = (
            shared
            + rng.normal(0, of.arm_seed, (seeds, 1))
            + rng.normal(0, of.arm_task, (1, tasks))
            + rng.normal(0, of.arm_cell, (seeds, tasks))
            for _ in range(2)
        )
        return one, other
