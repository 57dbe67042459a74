"""What the gym says, from its rows: for people a table, for scripts one object. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oven_bench.gym.best_rule import BEST, best_rule, oracle
from oven_bench.gym.episode_rows import Row
from oven_bench.gym.score import ArmScore, Healthy, arm_scores, healthy_by_arm
from oven_bench.gym.task_report import Part, TaskReport, by_task
from oven_bench.gym.verdict import Verdict, verdict
from oven_bench.statistics import Interval

BASELINES = (
    "nothing", "random", BEST, "loss_spike", "not_a_number", "zclip", "plateau", "best_checkpoint", "autolrs",
)  # fmt: skip
"""What the judged arm has to beat. The fixed rules stand behind `best_rule`; the oracle knows the future."""


@dataclass(frozen=True, slots=True)
class Report:
    subject: str
    arms: Mapping[str, ArmScore]
    """On the families that count: the held-out ones if there are any, else the training ones."""
    healthy: Mapping[str, Healthy]
    verdict: Verdict
    held_out: bool
    training: Mapping[str, ArmScore]
    """On the training families, where `arms` is not."""
    tasks: TaskReport | None
    """Where more than one task was played."""


def report(rows: Sequence[Row], subject: str) -> Report:
    every = [*rows, *best_rule(rows), *oracle(rows)]
    hidden = any(row.held_out for row in every)
    counted = [row for row in every if row.held_out == hidden]
    arms, calm = arm_scores(counted), healthy_by_arm(counted)
    baselines = {name: arms[name] for name in BASELINES if name in arms and name != subject}
    found = verdict(arms.get(subject), baselines, calm.get(subject))
    training = arm_scores(row for row in every if not row.held_out) if hidden else {}
    return Report(subject, arms, calm, found, hidden, training, by_task(every, subject))


def plain(found: Report) -> dict[str, Any]:
    """The object of the command contract; what was not measured is null."""
    calm = found.healthy.get(found.subject)
    out: dict[str, Any] = {
        "arms": {arm: _arm_score(each) for arm, each in found.arms.items()},
        "healthy": _healthy(calm),
        "verdict": found.verdict.word,
        "why": found.verdict.why,
        "subject": found.subject,
        "best_baseline": found.verdict.best or None,
        "difference": _interval(found.verdict.difference) if found.verdict.difference else None,
        "held_out": found.held_out,
        "healthy_by_arm": {arm: _healthy(each) for arm, each in found.healthy.items()},
    }
    if found.held_out:
        out["training"] = {arm: _arm_score(each) for arm, each in found.training.items()}
    if found.tasks is not None:
        out |= _tasks(found.tasks)
    return out


def _tasks(of: TaskReport) -> dict[str, Any]:
    return {
        "tasks": {kind: _part(part) for kind, part in of.tasks.items()},
        "leave_one_task_out": {
            kind: {
                "arms": {arm: _arm_score(each) for arm, each in left.arms.items()},
                "rule": left.rule or None,
                "difference": _interval(left.difference) if left.difference else None,
            }
            for kind, left in of.left_out.items()
        },
        "not_developed_on": _part(of.not_developed_on) if of.not_developed_on else None,
    }


def _part(of: Part) -> dict[str, Any]:
    return {
        "tasks": list(of.tasks),
        "held_out": of.held_out,
        "arms": {arm: _arm_score(each) for arm, each in of.arms.items()},
        "healthy_by_arm": {arm: _healthy(each) for arm, each in of.healthy.items()},
        "difference": _interval(of.difference) if of.difference else None,
    }


def _interval(of: Interval) -> dict[str, float]:
    return {"mean": round(of.mean, 4), "low": round(of.low, 4), "high": round(of.high, 4)}


def _arm_score(of: ArmScore) -> dict[str, Any]:
    return {
        **_interval(of.score),
        "worse_than_nothing": round(of.worse.mean, 4),
        "episodes": of.episodes,
        "families": len(of.families),
        "by_family": {family: round(mean, 4) for family, mean in of.families.items()},
    }


def _healthy(of: Healthy | None) -> dict[str, float | None]:
    if of is None:
        return dict.fromkeys(("harm", "low", "high", "interventions_per_1000"))
    return {
        "harm": round(of.harm.mean, 5),
        "low": round(of.harm.low, 5),
        "high": round(of.harm.high, 5),
        "interventions_per_1000": round(of.interventions_per_1000, 3),
    }
