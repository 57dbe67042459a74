"""Two arms that no one has to run: the best fixed rule as it could be chosen, and the best as it never can.

Both are made of the rows of the fixed rules' own episodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean

from oven_bench.gym.episode_rows import Row, by_case
from oven_bench.gym.score import by_family, score

RULE = "rule."
"""How the names of the fixed rules' arms begin."""
BEST, ORACLE = "best_rule", "oracle"


def best_rule(rows: Sequence[Row]) -> list[Row]:
    """The fixed rule with the best mean score over training families, judged on families that did not choose it: the
    held-out ones, and of the training ones each by the choice that the others make (leave one family out)."""
    return _chosen_elsewhere(rows, lambda row: row.family)


def best_rule_of_other_tasks(rows: Sequence[Row]) -> list[Row]:
    """The same where each task's rule is chosen by the training families of the other tasks (leave one task out). No
    rows of one task alone."""
    return _chosen_elsewhere(rows, lambda row: row.kind)


def _chosen_elsewhere(rows: Sequence[Row], left_out: Callable[[Row], str]) -> list[Row]:
    rules = [row for row in rows if row.arm.startswith(RULE)]
    judging = [row for row in rules if not row.held_out and not row.healthy]
    chosen: list[Row] = []
    for part in sorted({left_out(row) for row in rules}):
        if name := choice(row for row in judging if left_out(row) != part):
            of = [row for row in rules if left_out(row) == part and row.arm == name]
            chosen += [replace(row, arm=BEST, kept=name) for row in of]
    return chosen


def choice(rows: Iterable[Row]) -> str | None:
    """The arm with the best mean over families; the first by name of equals. None of no rows."""
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(row.arm, []).append(row)
    means = {arm: fmean(by_family(of[arm], score).values()) for arm in sorted(of)}
    return max(means, key=lambda arm: means[arm], default=None)


def oracle(rows: Sequence[Row]) -> list[Row]:
    """In each episode the remedy, or none, that turned out best: a bound for anyone who picks among these remedies at
    these alarms, and no bound for others."""
    best: list[Row] = []
    for arms in by_case([row for row in rows if row.arm.startswith(RULE) or row.arm == "nothing"]).values():
        if arms.keys() - {"nothing"}:
            row = min(arms.values(), key=lambda row: (row.loss, row.interventions, row.arm))
            best.append(replace(row, arm=ORACLE, kept=row.arm))
    return best
