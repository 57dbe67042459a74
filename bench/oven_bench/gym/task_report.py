"""An arm's figures task by task, where more than one was played, next to a rule that other tasks chose. Pure.

Agents that were developed on two tasks harmed runs of other shapes. A mean over all tasks hides that: what counts is
how an arm does on a task that nothing in it was fitted to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from oven_bench.gym.best_rule import BEST, best_rule_of_other_tasks
from oven_bench.gym.episode_rows import Row
from oven_bench.gym.score import ArmScore, Healthy, arm_scores, healthy_by_arm
from oven_bench.gym.task_table import DEVELOPED_ON, TASKS, Kind
from oven_bench.gym.verdict import compared
from oven_bench.statistics import Interval


@dataclass(frozen=True, slots=True)
class Part:
    """The figures of one task, or of several together."""

    tasks: tuple[Kind, ...]
    held_out: bool
    """Whether a family among them is held out: then a task that has such families is judged on those alone."""
    arms: Mapping[str, ArmScore]
    healthy: Mapping[str, Healthy]
    difference: Interval | None
    """Of the subject's score to best_rule's, over the families that both were run on; None without one of them."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """One task, of which nothing has chosen or taught what is judged on it."""

    arms: Mapping[str, ArmScore]
    """The subject, and `best_rule`, as far as they were run."""
    rule: str
    """The fixed rule that the other tasks chose; empty where none was run there."""
    difference: Interval | None


@dataclass(frozen=True, slots=True)
class TaskReport:
    tasks: Mapping[Kind, Part]
    left_out: Mapping[Kind, LeftOut]
    not_developed_on: Part | None
    """The tasks that are not in DEVELOPED_ON together, each with the rule that the others chose; None where none was
    played. The figure that counts: its interval resamples families, so it is for other faults in these tasks."""


def by_task(rows: Sequence[Row], subject: str) -> TaskReport | None:
    """None of one task alone. `rows` may have those of `best_rule` and of the oracle."""
    kinds = [kind for kind in TASKS if any(row.kind == kind for row in rows)]
    if len(kinds) < 2:
        return None
    judged = [row for kind in kinds for row in _judged([row for row in rows if row.kind == kind])]
    elsewhere = _judged_like(judged, [*(row for row in rows if row.arm != BEST), *best_rule_of_other_tasks(rows)])
    tasks = {kind: _part([row for row in judged if row.kind == kind], subject) for kind in kinds}
    left_out = {kind: _left_out([row for row in elsewhere if row.kind == kind], subject) for kind in kinds}
    new = [row for row in elsewhere if row.kind not in DEVELOPED_ON]
    return TaskReport(tasks, left_out, _part(new, subject) if new else None)


def _judged(rows: Sequence[Row]) -> list[Row]:
    """Of one task: its held-out families if any was played, else the training ones."""
    hidden = any(row.held_out for row in rows)
    return [row for row in rows if row.held_out == hidden]


def _judged_like(judged: Sequence[Row], rows: Sequence[Row]) -> list[Row]:
    families = {row.family for row in judged}
    return [row for row in rows if row.family in families]


def _part(rows: Sequence[Row], subject: str) -> Part:
    arms = arm_scores(rows)
    kinds = tuple(kind for kind in TASKS if any(row.kind == kind for row in rows))
    hidden = any(row.held_out for row in rows)
    return Part(kinds, hidden, arms, healthy_by_arm(rows), _difference(arms, subject))


def _left_out(rows: Sequence[Row], subject: str) -> LeftOut:
    arms = arm_scores(row for row in rows if row.arm in (subject, BEST))
    rule = next((str(row.kept) for row in rows if row.arm == BEST), "")
    return LeftOut(arms, rule, _difference(arms, subject))


def _difference(arms: Mapping[str, ArmScore], subject: str) -> Interval | None:
    if subject == BEST or subject not in arms or BEST not in arms:
        return None
    mine, rule = arms[subject], arms[BEST]
    shared = [family for family in mine.families if family in rule.families]
    return compared(mine, {BEST: rule}, shared)[1] if shared else None
