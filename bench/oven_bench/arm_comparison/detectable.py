"""The difference that an experiment can detect, said before it is run.

It follows from the design (seeds, tasks, samples) and from how much differences vary: from seed to seed, from task to
task, from cell to cell, and among the samples of a cell. These parts come from a pilot on development seeds, or are
assumed from published ones. A pilot of few seeds knows its parts badly; the power is then averaged over what they may
be, so that the figure holds on average over pilots and is larger, not smaller, for a small one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats
from scipy.optimize import brentq
from scipy.special import ndtr

from oven_bench.arm_comparison.clustered import checked, freedom, mean_squares, variance
from oven_bench.statistics import LEVEL

POWER: Final = 0.8
"""Chance that the verdict is HELPS where the gain is as large as was said: Cohen's (1988) convention."""
_DRAWS: Final = 4000
"""Experiments over which the power is averaged: more move the figure by less than a hundredth of itself."""


@dataclass(frozen=True, slots=True)
class Design:
    """How often arms are tried: the same for all of them."""

    seeds: int
    tasks: int
    samples: int

    def __post_init__(self) -> None:
        """Raises ValueError where there would be no interval."""
        if min(self.seeds, self.tasks) < 2 or self.samples < 1:
            raise ValueError(
                f"{self.seeds} seeds × {self.tasks} tasks × {self.samples} samples have no interval; give at least "
                "2 seeds, 2 tasks and 1 sample"
            )


@dataclass(frozen=True, slots=True)
class VarianceParts:
    """Variances of the difference of two arms in one cell, by what they come from; in squared rates."""

    seed: float
    task: float
    cell: float
    """The interaction of seed and task."""
    sample: float
    """Of one sample's difference within its cell: for K samples it is divided by K."""
    freedom: float | None = None
    """Degrees of freedom of the pilot's variance of the mean; None where the parts are assumed."""
    rate: float | None = None
    """The base's rate of success; None: not known. A gain moves an arm's rate, and nearer to ½ it varies more."""

    def of_mean(self, design: Design) -> float:
        """The variance of the mean difference."""
        cells = (self.cell + self.sample / design.samples) / (design.seeds * design.tasks)
        return self.seed / design.seeds + self.task / design.tasks + cells


def parts_of(a: ArrayLike, b: ArrayLike) -> VarianceParts:
    """From a pilot's two arms, [seeds, tasks, samples] with at least two samples: without, the chance of a sample
    cannot be told from the interaction. A part whose estimate is below 0 is 0. Raises ValueError."""
    one, other = checked(a, "the pilot's first arm"), checked(b, "the pilot's second arm")
    if one.shape != other.shape or one.shape[2] < 2:
        raise ValueError(f"a pilot of shapes {one.shape} and {other.shape}; give two alike with at least 2 samples")
    found = mean_squares(one.mean(axis=2) - other.mean(axis=2))
    sample = float((one.var(axis=2, ddof=1) + other.var(axis=2, ddof=1)).mean())
    return VarianceParts(
        seed=max(0.0, (found.seed - found.cell) / found.tasks),
        task=max(0.0, (found.task - found.cell) / found.seeds),
        cell=max(0.0, found.cell - sample / one.shape[2]),
        sample=sample,
        freedom=found.freedom,
        rate=float(other.mean()),
    )


def assumed_parts(rate: float, *, seed_sd: float = 0.02, task_sd: float = 0.1, cell_sd: float = 0.1) -> VarianceParts:
    """Without a pilot: standard deviations of the difference over seeds (single runs of one recipe differ by 1.5 points
    and more, arXiv 2602.07150, and a difference has two of them), over tasks, and over cells. `rate`: of success."""
    if not 0 < rate < 1:
        raise ValueError(f"a success rate of {rate:g} has no spread; give one between 0 and 1")
    return VarianceParts(seed_sd**2, task_sd**2, cell_sd**2, 2 * rate * (1 - rate), rate=rate)


class Power:
    """Chance of HELPS by the true gain, for one design. The mean squares are drawn as they come for normal differences
    (scaled χ², independent of the mean), and the interval is made of them as `compare` makes it."""

    def __init__(self, parts: VarianceParts, design: Design) -> None:
        rng = np.random.default_rng(0)  # the same figure at each call
        own, other, cells = design.seeds - 1, design.tasks - 1, design.seeds * design.tasks
        unknown = np.ones(_DRAWS)
        if parts.freedom is not None:
            unknown = parts.freedom / rng.chisquare(parts.freedom, _DRAWS)
        residual = parts.cell + parts.sample / design.samples
        seed, task, cell = (
            unknown * expected * rng.chisquare(free, _DRAWS) / free
            for expected, free in (
                (design.tasks * parts.seed + residual, own),
                (design.seeds * parts.task + residual, other),
                (residual, own * other),
            )
        )
        quantiles = stats.t.ppf((1 + LEVEL) / 2, freedom(seed, task, cell, design.seeds, design.tasks))
        self._half = quantiles * np.sqrt(variance(seed, task, cell) / cells)
        self._error = np.maximum(np.sqrt(unknown * parts.of_mean(design)), 1e-12)
        self._rate = parts.rate

    def at(self, gain: float) -> float:
        """From 0 to 1, of a gain of rates."""
        wider = math.sqrt(_growth(self._rate, gain))
        return float(ndtr((gain / wider - self._half) / self._error).mean())


def _growth(rate: float | None, gain: float) -> float:
    """By how much variances are larger with the gain than without: by a binomial's, the mean of both arms; 1 where they
    would be smaller."""
    if rate is None or not 0 < rate < 1:
        return 1.0
    raised = min(rate + gain, 1.0)
    return max(1.0, (1 + raised * (1 - raised) / (rate * (1 - rate))) / 2)


def detectable(parts: VarianceParts, design: Design, power: float = POWER) -> float:
    """The smallest true gain, from 0 to 1, for which the verdict is HELPS with the chance `power`. Raises ValueError
    where no gain of rates is large enough."""
    of = Power(parts, design)
    if of.at(1.0) < power:
        raise ValueError(
            f"{design.seeds} seeds × {design.tasks} tasks × {design.samples} samples detect no gain with a power of "
            f"{power:g}; use more seeds, or a larger pilot"
        )
    return float(brentq(lambda gain: of.at(gain) - power, 0.0, 1.0, xtol=1e-5))
