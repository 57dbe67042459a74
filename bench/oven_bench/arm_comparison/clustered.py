"""The difference of two arms' success rates, with an interval clustered by seed and by task, and the word for it.

Each arm is an array [seeds, tasks, samples] of 0 and 1; a seed is one training, a task one held-out problem, and a
sample one try at it. Samples of a task are alike, and so are tasks under one seed: a test that takes them for
independent finds differences where there are none. The variance of the mean difference over cells (a seed and a task)
is read off the two-way analysis of variance with both factors random, Var = (MS_seed + MS_task − MS_cell) / (S T), and
its degrees of freedom are Satterthwaite's (1946). Miller (arXiv 2411.00640) clusters by task alone, for one model.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from oven_bench.statistics import LEVEL, Word

EQUIVALENCE: Final = 0.02
"""Two points: the source's claim is a gain of at least two, so a smaller one, up or down, is none."""
LEAST_SHARE: Final = 0.3
"""Of the cells' mean square that the variance keeps at least. The estimate is a difference and may come out near 0 or
below it. Of the floors tried in 25 simulated settings (5–10 seeds, 24–100 tasks) this one kept the coverage of the 95 %
interval nearest to .95: .949–.970; without one it is .938–.973 with intervals up to two fifths wider."""
SATURATED: Final = 0.02
"""Share of solved (or of failed) samples over both arms below which the tasks cannot tell arms apart."""


@dataclass(frozen=True, slots=True)
class MeanSquares:
    """The two-way analysis of variance of one difference a cell, [seeds, tasks]."""

    mean: float
    seeds: int
    tasks: int
    seed: float
    task: float
    cell: float
    """What neither explains: the interaction, and the samples' own chance."""

    @property
    def variance(self) -> float:
        """Of the mean difference."""
        return float(variance(self.seed, self.task, self.cell)) / (self.seeds * self.tasks)

    @property
    def freedom(self) -> float:
        """Satterthwaite's degrees of freedom, at least those of the smaller factor by itself."""
        return float(freedom(self.seed, self.task, self.cell, self.seeds, self.tasks))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One arm minus another. Rates and differences are from 0 to 1: two points are .02."""

    rate: float
    other_rate: float
    difference: float
    low: float
    high: float
    """The ends of the 95 % interval."""
    low_90: float
    high_90: float
    """The ends of the 90 % interval: it lies within ± `equivalence` exactly where both one-sided tests (Schuirmann
    1987) at 5 % refuse a difference that large."""
    p: float
    """Of no difference, two-sided."""
    freedom: float
    seeds: int
    tasks: int
    samples: int
    equivalence: float
    verdict: Word
    note: str = ""
    """What has to be known beside the verdict; empty: nothing."""

    @property
    def is_equivalent(self) -> bool:
        """Whether a difference of `equivalence` or more, up or down, is ruled out."""
        return -self.equivalence < self.low_90 and self.high_90 < self.equivalence


def compare(a: ArrayLike, b: ArrayLike, *, equivalence: float = EQUIVALENCE) -> Comparison:
    """`a` minus `b`, arrays [seeds, tasks, samples] of 0 and 1 in one order of seeds and tasks.

    HELPS and HARMS: the 95 % interval does not hold 0. NO EFFECT: two one-sided tests rule out ± `equivalence`.
    INCONCLUSIVE: neither, or the tasks are solved nearly always or never. Raises ValueError for arrays of other shapes
    or values, for missing results, and below two seeds or tasks.
    """
    if not 0 < equivalence < 1:
        raise ValueError(f"an equivalence of {equivalence:g} is none; give a difference of rates, e.g. 0.02")
    one, other = checked(a, "the first arm"), checked(b, "the second arm")
    if one.shape != other.shape:
        raise ValueError(f"arms of shapes {one.shape} and {other.shape}; both need the same seeds, tasks and samples")
    found = mean_squares(one.mean(axis=2) - other.mean(axis=2))
    error = math.sqrt(found.variance)
    half = float(stats.t.ppf((1 + LEVEL) / 2, found.freedom)) * error
    half_90 = float(stats.t.ppf(LEVEL, found.freedom)) * error
    both = float(one.mean() + other.mean()) / 2
    saturated = min(both, 1 - both) < SATURATED
    said = Comparison(
        rate=float(one.mean()),
        other_rate=float(other.mean()),
        difference=found.mean,
        low=found.mean - half,
        high=found.mean + half,
        low_90=found.mean - half_90,
        high_90=found.mean + half_90,
        p=float(2 * stats.t.sf(abs(found.mean) / error, found.freedom)) if error > 0 else float(found.mean == 0),
        freedom=found.freedom,
        seeds=found.seeds,
        tasks=found.tasks,
        samples=one.shape[2],
        equivalence=equivalence,
        verdict="INCONCLUSIVE",
    )
    return replace(said, verdict=_word(said, saturated), note=_note(said, saturated))


def compare_all(
    arms: Mapping[str, ArrayLike], base: str, *, primary: str, equivalence: float = EQUIVALENCE
) -> dict[str, Comparison]:
    """Each arm but `base` against it, `primary` first. The primary comparison, named before the run, keeps its own
    verdict; among the others HELPS and HARMS have to survive Holm's (1979) correction. Raises KeyError, ValueError."""
    found = {
        name: compare(arms[name], arms[base], equivalence=equivalence) for name in (primary, *arms) if name != base
    }
    others = sorted((name for name in found if name != primary), key=lambda name: found[name].p)
    adjusted = 0.0
    for place, name in enumerate(others):
        adjusted = max(adjusted, min(1.0, (len(others) - place) * found[name].p))
        if found[name].verdict in ("HELPS", "HARMS") and adjusted >= 1 - LEVEL:
            said = f"p = {adjusted:.3f} after Holm's correction for {len(others)} comparisons"
            found[name] = replace(found[name], verdict="INCONCLUSIVE", note=said)
    return found


def mean_squares(differences: NDArray[np.float64]) -> MeanSquares:
    """Of one difference a cell, [seeds, tasks]. Raises ValueError below two of either."""
    seeds, tasks = differences.shape
    if min(seeds, tasks) < 2:
        raise ValueError(f"{seeds} seeds × {tasks} tasks have no interval; give at least 2 of both")
    mean = float(differences.mean())
    by_seed, by_task = differences.mean(axis=1) - mean, differences.mean(axis=0) - mean
    cells = differences - mean - by_seed[:, None] - by_task[None, :]
    return MeanSquares(
        mean=mean,
        seeds=seeds,
        tasks=tasks,
        seed=float(tasks * (by_seed**2).sum() / (seeds - 1)),
        task=float(seeds * (by_task**2).sum() / (tasks - 1)),
        cell=float((cells**2).sum() / ((seeds - 1) * (tasks - 1))),
    )


def variance(seed: ArrayLike, task: ArrayLike, cell: ArrayLike) -> NDArray[np.float64]:
    """The mean difference's variance times the number of cells, from the mean squares, each a number or an array."""
    residual = np.asarray(cell, dtype=np.float64)
    found: NDArray[np.float64] = np.maximum(np.asarray(seed) + np.asarray(task) - residual, LEAST_SHARE * residual)
    return found


def freedom(seed: ArrayLike, task: ArrayLike, cell: ArrayLike, seeds: int, tasks: int) -> NDArray[np.float64]:
    """Satterthwaite's degrees of freedom of that variance, at least those of the smaller factor by itself."""
    own, other = seeds - 1, tasks - 1
    spread = np.square(seed) / own + np.square(task) / other + np.square(cell) / (own * other)
    found = np.square(variance(seed, task, cell)) / np.where(spread > 0, spread, 1.0)
    least: NDArray[np.float64] = np.maximum(found, min(own, other))
    return least


def checked(arm: ArrayLike, called: str) -> NDArray[np.float64]:
    """The arm as an array [seeds, tasks, samples]. Raises ValueError."""
    found = np.asarray(arm, dtype=np.float64)
    if found.ndim != 3 or 0 in found.shape:
        raise ValueError(f"{called} has the shape {found.shape}; give seeds × tasks × samples")
    if missing := int(np.isnan(found).sum()):
        raise ValueError(
            f"{missing} of {found.size} results of {called} are missing, and a failure is no 0: run them, or leave "
            "their seed out of both arms"
        )
    if not np.isin(found, (0.0, 1.0)).all():
        raise ValueError(f"{called} holds other values than 0 (not solved) and 1 (solved)")
    return found


def _word(found: Comparison, saturated: bool) -> Word:
    if found.low > 0:
        return "HELPS"
    if found.high < 0:
        return "HARMS"
    return "NO EFFECT" if found.is_equivalent and not saturated else "INCONCLUSIVE"


def _note(found: Comparison, saturated: bool) -> str:
    if saturated:
        return (
            f"the arms solve {100 * found.rate:.1f} and {100 * found.other_rate:.1f} % of all samples: such tasks "
            "cannot tell them apart"
        )
    if found.is_equivalent and (found.low > 0 or found.high < 0):
        return f"surely a difference, and surely below {100 * found.equivalence:g} points"
    return ""
