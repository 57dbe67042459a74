"""What the gym says, from its rows: for people a table, for scripts one object. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from oven_bench.gym.best_rule import BEST, best_rule, oracle
from oven_bench.gym.episode_rows import Row
from oven_bench.gym.score import ArmScore, Healthy, arm_score, healthy
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


def report(rows: Sequence[Row], subject: str) -> Report:
    every = [*rows, *best_rule(rows), *oracle(rows)]
    hidden = any(row.held_out for row in every)
    arms = _arm_scores([row for row in every if row.held_out == hidden])
    calm = {arm: healthy(of) for arm, of in _by_arm([r for r in every if r.healthy and r.held_out == hidden]).items()}
    baselines = {name: arms[name] for name in BASELINES if name in arms and name != subject}
    found = verdict(arms.get(subject), baselines, calm.get(subject))
    training = _arm_scores([row for row in every if not row.held_out]) if hidden else {}
    return Report(subject, arms, calm, found, hidden, training)


def _arm_scores(rows: Sequence[Row]) -> dict[str, ArmScore]:
    """Best first."""
    of = {arm: arm_score(own) for arm, own in _by_arm([row for row in rows if not row.healthy]).items()}
    return dict(sorted(of.items(), key=lambda item: (-item[1].score.mean, item[0])))


def _by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    of: dict[str, list[Row]] = {}
    for row in rows:
        of.setdefault(row.arm, []).append(row)
    return of


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
    return out


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
