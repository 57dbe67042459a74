"""What an episode is worth, and what is known of an arm after many: pure functions of rows.

An episode's score is the share of the harm that was undone, (L_nothing − L_arm) / (L_nothing − L_twin): 0 for doing
nothing, 1 for an end as good as if there had been no fault. It is floored at −1, so that one ruined run does not stand
for all, and clipped nowhere else: clipped at 0, an arm that does harm half the time looks useful.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from oven_bench.gym.episode_rows import Row
from oven_bench.gym.task_table import Kind, task
from oven_bench.statistics import Interval, bootstrapped_mean

FLOOR = -1.0


def noise(kind: Kind, loss: float) -> float:
    """What two runs that differ by chance alone differ by, in the unit of `loss`."""
    of = task(kind)
    return of.noise * of.size(loss)


def harmed(row: Row) -> bool:
    """Whether the fault did harm beyond noise: else there is nothing to undo, and a small difference to divide by."""
    return row.nothing - row.twin > noise(row.kind, row.twin)


def score(row: Row) -> float:
    """Harm undone; where there was none, what the arm cost: minus the share by which the final loss rose."""
    if harmed(row):
        return max(FLOOR, (row.nothing - row.loss) / (row.nothing - row.twin))
    return max(FLOOR, min(0.0, -cost(row)))


def cost(row: Row) -> float:
    """The share of the final loss (`Task.size`) that the arm added; below 0 where it took some away."""
    return (row.loss - row.nothing) / task(row.kind).size(row.nothing)


def worse(row: Row) -> bool:
    """Than doing nothing, beyond noise."""
    return row.loss > row.nothing + noise(row.kind, row.nothing)


def by_family(rows: Iterable[Row], of: Callable[[Row], float]) -> dict[str, float]:
    """Family → mean over its episodes, in the order of their names."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row.family, []).append(of(row))
    return {family: fmean(values[family]) for family in sorted(values)}


@dataclass(frozen=True, slots=True)
class ArmScore:
    """An arm over families that have a fault.

    Intervals resample families and not episodes: the seeds of one family fail alike, and what is asked is how the arm
    would do with faults that no one thought of. With few families they are wide, and rightly: five faults say little of
    the sixth.
    """

    score: Interval
    worse: Interval
    """Share of episodes worse than nothing."""
    families: Mapping[str, float]
    """Family → mean score."""
    episodes: int


def arm_score(rows: Sequence[Row]) -> ArmScore:
    """Of one arm's rows, one or more."""
    families = by_family(rows, score)
    share = by_family(rows, lambda row: float(worse(row)))
    return ArmScore(bootstrapped_mean([*families.values()]), bootstrapped_mean([*share.values()]), families, len(rows))


@dataclass(frozen=True, slots=True)
class Healthy:
    """An arm where nothing was wrong."""

    harm: Interval
    """Share of the final loss that it added."""
    interventions_per_1000: float
    """Gradient steps."""
    families: Mapping[str, float]


def by_arm(rows: Iterable[Row]) -> dict[str, list[Row]]:
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(row.arm, []).append(row)
    return of


def arm_scores(rows: Iterable[Row]) -> dict[str, ArmScore]:
    """Arm → its score where something was wrong. Best first."""
    of = {arm: arm_score(own) for arm, own in by_arm(row for row in rows if not row.healthy).items()}
    return dict(sorted(of.items(), key=lambda item: (-item[1].score.mean, item[0])))


def healthy_by_arm(rows: Iterable[Row]) -> dict[str, Healthy]:
    """Arm → what it did where nothing was wrong."""
    return {arm: healthy(own) for arm, own in by_arm(row for row in rows if row.healthy).items()}


def healthy(rows: Sequence[Row]) -> Healthy:
    """Of one arm's rows, one or more."""
    families = by_family(rows, cost)
    interventions, steps = sum(row.interventions for row in rows), sum(row.steps for row in rows)
    return Healthy(bootstrapped_mean([*families.values()]), 1000 * interventions / steps, families)
