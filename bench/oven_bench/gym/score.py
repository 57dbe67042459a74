"""The score of an episode, the scores of arms over families, and the verdict. Pure functions of rows.

An episode's score is the share of the harm that was undone, (L_nothing − L_arm) / (L_nothing − L_twin): 0 for doing
nothing, 1 for an end as good as without the fault. It is at least −1, so that one ruined run does not outweigh all
others. It has no other bound: clipped at 0, an arm that does harm half the time would look useful.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from oven_bench.gym.arms.alarm_rules import RULE
from oven_bench.gym.task_table import TASKS, Kind
from oven_bench.intervals import Interval, Word, bootstrapped_mean, difference_to_best

FLOOR = -1.0
BEST_RULE, ORACLE = "best_rule", "oracle"
"""Two arms that are computed from the rows of the fixed rules."""
MIN_FAMILIES = 6
"""With fewer families there is no conclusion: a bootstrap of five has 126 samples, so its interval is too narrow."""
MARGIN = 0.05
"""Smallest difference of scores that matters."""
MAX_WORSE = 0.1
"""Largest acceptable share of episodes that end worse than doing nothing."""
MAX_COST = 0.02
"""Largest acceptable cost for healthy runs, as a share of the final loss."""


@dataclass(frozen=True, slots=True)
class Row:
    """One episode of an arm. Losses are `quality()`: lower is better."""

    family: str
    kind: Kind
    healthy: bool
    seed: int
    arm: str
    onset: int
    loss: float
    """Under the arm."""
    nothing: float
    """The same fault without an arm."""
    twin: float
    """The same seed without a fault, after as many gradient steps."""
    steps: int
    interventions: int
    seconds: float
    """CPU time, without the shared beginning."""
    outcomes: Sequence[Any] = ()
    """The mesh's outcomes, as in a log."""

    @property
    def key(self) -> tuple[str, int, str]:
        return self.family, self.seed, self.arm


def noise(kind: Kind, loss: float) -> float:
    """The difference that two runs have by chance alone, in units of `loss`."""
    return TASKS[kind].noise * TASKS[kind].size(loss)


def score(row: Row) -> float:
    """The share of the harm that was undone. Without harm beyond noise: minus what the arm cost, at most 0."""
    if row.nothing - row.twin > noise(row.kind, row.twin):
        return max(FLOOR, (row.nothing - row.loss) / (row.nothing - row.twin))
    return max(FLOOR, min(0.0, -cost(row)))


def cost(row: Row) -> float:
    """The share of the final loss (`Task.size`) that the arm added. Negative if it lowered the loss."""
    return (row.loss - row.nothing) / TASKS[row.kind].size(row.nothing)


def worse(row: Row) -> bool:
    """Whether the episode ended worse than doing nothing, beyond noise."""
    return row.loss > row.nothing + noise(row.kind, row.nothing)


def by_family(rows: Iterable[Row], figure: Callable[[Row], float]) -> dict[str, float]:
    """Family → mean over its episodes, sorted by name."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row.family, []).append(figure(row))
    return {family: fmean(values[family]) for family in sorted(values)}


def by_arm(rows: Iterable[Row]) -> dict[str, list[Row]]:
    arms: dict[str, list[Row]] = {}
    for row in rows:
        arms.setdefault(row.arm, []).append(row)
    return arms


@dataclass(frozen=True, slots=True)
class ArmScore:
    """An arm over families that have a fault.

    Intervals resample families, not episodes: the seeds of one family fail alike, and the question is how the arm would
    do with faults that no one thought of. With few families the intervals are wide, and rightly so.
    """

    score: Interval
    worse: Interval
    """Share of episodes that ended worse than doing nothing."""
    families: Mapping[str, float]
    """Family → mean score."""
    episodes: int


@dataclass(frozen=True, slots=True)
class HealthyCost:
    """An arm over healthy families."""

    harm: Interval
    """Share of the final loss that the arm added."""
    interventions_per_1000: float
    """Interventions per 1,000 gradient steps."""


def arm_scores(rows: Iterable[Row]) -> dict[str, ArmScore]:
    """Arm → score over families with a fault, best first."""
    scores = {}
    for arm, own in by_arm(row for row in rows if not row.healthy).items():
        families = by_family(own, score)
        share = by_family(own, lambda row: float(worse(row)))
        scores[arm] = ArmScore(
            bootstrapped_mean([*families.values()]), bootstrapped_mean([*share.values()]), families, len(own)
        )
    return dict(sorted(scores.items(), key=lambda item: (-item[1].score.mean, item[0])))


def healthy_costs(rows: Iterable[Row]) -> dict[str, HealthyCost]:
    """Arm → its cost over healthy families."""
    costs = {}
    for arm, own in by_arm(row for row in rows if row.healthy).items():
        interventions, steps = sum(row.interventions for row in own), sum(row.steps for row in own)
        costs[arm] = HealthyCost(bootstrapped_mean([*by_family(own, cost).values()]), 1000 * interventions / steps)
    return costs


def best_rule(rows: Sequence[Row]) -> list[Row]:
    """Rows of an arm that plays, on each family, the fixed rule that does best on all others (leave one out)."""
    rules = [row for row in rows if row.arm.startswith(RULE)]
    chosen: list[Row] = []
    for family in sorted({row.family for row in rules}):
        others = by_arm(row for row in rules if not row.healthy and row.family != family)
        means = {arm: fmean(by_family(others[arm], score).values()) for arm in sorted(others)}
        if means:
            name = max(means, key=lambda arm: means[arm])
            chosen += [replace(row, arm=BEST_RULE) for row in rules if row.family == family and row.arm == name]
    return chosen


def oracle(rows: Sequence[Row]) -> list[Row]:
    """Rows of an arm that knows which remedy, or none, turns out best in each episode: a bound for anyone who picks
    among these remedies at these alarms."""
    cases: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        if row.arm.startswith(RULE) or row.arm == "nothing":
            cases.setdefault((row.family, row.seed), []).append(row)
    best = [
        min(case, key=lambda row: (row.loss, row.interventions, row.arm)) for case in cases.values() if len(case) > 1
    ]
    return [replace(row, arm=ORACLE) for row in best]


@dataclass(frozen=True, slots=True)
class Verdict:
    word: Word
    why: str
    best: str = ""
    """The baseline with the best mean."""
    difference: Interval | None = None
    """The subject's score minus the best baseline's."""


def verdict(subject: ArmScore | None, baselines: Mapping[str, ArmScore], healthy: HealthyCost | None) -> Verdict:
    """Judge an arm. The rules were written before anything was measured. In this order:

    - INCONCLUSIVE without the subject, without a baseline, or with fewer than MIN_FAMILIES families;
    - HARMS if the interval of the difference to the best baseline is below 0, or if certainly more than MAX_WORSE of
      the episodes end worse than doing nothing, or if it certainly costs healthy runs more than MAX_COST;
    - HELPS if the interval is above 0 and the measured shares are within those limits;
    - NO EFFECT if the whole interval is within ± MARGIN;
    - INCONCLUSIVE otherwise.
    """
    if subject is None:
        return Verdict("INCONCLUSIVE", "the subject of the verdict was not played; add it to --arms")
    if not baselines:
        return Verdict("INCONCLUSIVE", "no baseline was played; add one to --arms")
    families = [
        name for name in subject.families if all(name in arm_score.families for arm_score in baselines.values())
    ]
    if len(families) < MIN_FAMILIES:
        return Verdict(
            "INCONCLUSIVE", f"all arms played {len(families)} families of faults; a verdict needs {MIN_FAMILIES}"
        )
    best, difference = difference_to_best(
        [subject.families[name] for name in families],
        {arm: [arm_score.families[name] for name in families] for arm, arm_score in baselines.items()},
    )
    against = f"{difference.mean:+.3f} [{difference.low:+.3f}, {difference.high:+.3f}] compared with {best}"
    share = f"{subject.worse.mean:.1%} of episodes worse than nothing (at most {MAX_WORSE:.0%})"
    harm = healthy.harm if healthy else None
    paid = (
        f"healthy runs cost {harm.mean:.1%} of the final loss (at most {MAX_COST:.0%})" if harm else "no healthy runs"
    )
    word = difference.word(MARGIN)
    if word == "HARMS":
        why = against
    elif subject.worse.low > MAX_WORSE:
        word, why = "HARMS", share
    elif harm and harm.low > MAX_COST:
        word, why = "HARMS", paid
    elif word == "HELPS" and subject.worse.mean > MAX_WORSE:
        word, why = "INCONCLUSIVE", f"{against}, but {share}"
    elif word == "HELPS" and (harm is None or harm.mean > MAX_COST):
        word, why = "INCONCLUSIVE", f"{against}, but {paid}"
    elif word == "HELPS":
        why = f"{against}; {share}; {paid}"
    else:
        why = f"{against}, within ± {MARGIN:g}" if word == "NO EFFECT" else against
    return Verdict(word, why, best, difference)
