"""Rules for runs that get better at their training and worse at everything else."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import (
    PARTIAL,
    Curve,
    held_out_curves,
    most_improved,
    objective_curve,
    show_improvement,
)
from oven_agents.diagnosis.rules.learning import classes_at_chance
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective

MIN_EVALUATIONS: Final = 4
"""Minimum number of held-out readings: the best one, one before or after it, and two that are worse."""
MIN_LOST: Final = 0.1
"""Minimum distance of the last held-out readings from the best one, as a share of it."""
MUCH_LOST: Final = 0.4
"""Distance from which the finding is one to act on."""
NOISES: Final = 4.0
"""Minimum distance in standard deviations of a reading."""
ONSET_SHARE: Final = 0.05
"""Share of the distance below which a reading is still as good as the best one."""
MIN_LEARNT: Final = 0.2
"""Minimum fall of the training loss after the best held-out reading, as a share of it."""
NEIGHBOURS: Final = 5
"""Number of training losses that give a level."""
MIN_REWARDS: Final = 8
"""Minimum number of rewards after the best held-out reading."""
MAX_NAMES: Final = 2
"""Maximum number of other held-out losses that are named."""
ERRORS: Final = 3.0
"""Minimum rise of the reward in standard errors."""


@dataclass(frozen=True, slots=True)
class _Fall:
    """A held-out metric whose last two readings are much worse than its best one."""

    curve: Curve

    @property
    def best(self) -> float:
        return self.curve.values[self.curve.best_index]

    @property
    def best_tick(self) -> int:
        return self.curve.best_tick

    @property
    def lost(self) -> float:
        return min(self.curve.values[-2:]) - self.best

    @property
    def onset(self) -> int:
        """Tick of the last reading that is about as good as the best one."""
        limit = self.best + ONSET_SHARE * self.lost
        return max(tick for tick, value in zip(self.curve.ticks, self.curve.values, strict=True) if value <= limit)

    @property
    def weight(self) -> float:
        return 0.85 if self.lost >= MUCH_LOST * abs(self.best) else 0.6

    def describe(self, record: RunRecord) -> str:
        best, last = self.curve.show(self.best), self.curve.show(self.curve.values[-1])
        return (
            f"{self.curve.name} was best at step {record.step_at(self.best_tick):,} ({best}) and is {last} at the end"
        )


def overfit(record: RunRecord) -> Evidence | None:
    """A held-out loss rises above its best reading while the training loss falls, or rises, too (diverged)."""
    if objective(record.started).name == "reward":
        return None
    curves = [curve for curve in held_out_curves(record) if curve.sign > 0]
    falls = list(_falls(curves))
    risen = [fall.curve.name for fall in falls]
    losses = [curve.name for curve in curves if "loss" in curve.name]
    return _strongest(_judge_losses(record, fall, _describe_others(fall.curve.name, losses, risen)) for fall in falls)


def _describe_others(name: str, losses: Sequence[str], risen: Collection[str]) -> str:
    """Return clauses about the held-out losses other than `name`: which of them rose, too. They may be empty."""
    others = [loss for loss in losses if loss != name]
    parts = {
        "rose, too": [loss for loss in others if loss in risen],
        "did not rise like this": [loss for loss in others if loss not in risen],
    }
    return "".join(f"; {_name_losses(part)} {verb}" for verb, part in parts.items() if part)


def _name_losses(names: Sequence[str]) -> str:
    return " and ".join(names) if len(names) <= MAX_NAMES else f"{len(names)} other held-out losses"


def reward_hacked(record: RunRecord) -> Evidence | None:
    """The reward rises while held-out quality falls: the policy learns what the reward pays for, and not the task."""
    if objective(record.started).name != "reward":
        return None
    return _strongest(_judge_reward(record, fall) for fall in _falls(held_out_curves(record)))


def _falls(curves: Iterable[Curve]) -> Iterable[_Fall]:
    for curve in curves:
        if len(curve.values) < MIN_EVALUATIONS:
            continue
        fall = _Fall(curve)
        if fall.lost >= max(MIN_LOST * abs(fall.best), NOISES * curve.noise):
            yield fall


def _judge_losses(record: RunRecord, fall: _Fall, others: str) -> Evidence | None:
    """Compare a rise of a held-out loss with the training loss. `others` has clauses about other held-out losses."""
    training_before, training_after = objective_curve(record).split(fall.best_tick)
    before, after = training_before[-NEIGHBOURS:], training_after[-NEIGHBOURS:]
    if not before or not after:
        return None
    learnt = (fmean(before) - fmean(after)) / max(abs(fmean(before)), 1e-12)
    if abs(learnt) < MIN_LEARNT:
        return None
    movement = f"{'fell' if learnt > 0 else 'rose'} from {fmean(before):.3g} to {fmean(after):.3g}{others}"
    text = f"{fall.describe(record)}, while the training loss {movement}"
    evidence = partial(Evidence, tick=fall.onset, metric=fall.curve.name, level=fall.curve.values[-1], bound=fall.best)
    if learnt < 0:
        return evidence("diverged", 0.6, text=text)
    if classes_at_chance(fall.best) == 2:  # other losses may be near those of more classes by chance
        text = (
            f"{fall.curve.name} was never more than 2% below {math.log(2):.3f}, which is guessing between two classes "
            f"(best {fall.curve.show(fall.best)} at step {record.step_at(fall.best_tick):,}), and from step "
            f"{record.step_at(fall.onset):,} on it rose to {fall.curve.show(fall.curve.values[-1])}, while the "
            f"training loss {movement}"
        )
        remedy = (
            "no checkpoint is much better than guessing: check a sample of the held-out labels by hand, and that "
            "training and held-out data come from the same source; if both are right, add data or regularise, and "
            "train again"
        )
        return evidence("overfit", fall.weight, text=text, remedy=remedy, cost="the time to check them")
    best_step = record.step_at(fall.best_tick)
    remedy = (
        f"use the checkpoint of step {best_step:,}, or if it was not saved, train again and stop there; to improve on "
        "it, add training data, or regularise (dropout, weight decay, augmentation)"
    )
    evidence = partial(evidence, cost=f"the {record.steps[-1] - best_step:,} steps after it, because you go back")
    task = most_improved(record, fall.best_tick, PARTIAL)
    if task is None:
        return evidence("overfit", fall.weight, text=text, remedy=remedy)
    text += f". {show_improvement(task, fall.best_tick, record)}"
    best_task_step = record.step_at(task.best_tick)
    remedy = f"if {task.name} is what matters, use its best checkpoint (step {best_task_step:,}); otherwise {remedy}"
    return evidence("overfit", min(fall.weight, 0.6), text=text, remedy=remedy)


def _judge_reward(record: RunRecord, fall: _Fall) -> Evidence | None:
    costs_before, costs_after = objective_curve(record).split(fall.best_tick)
    if len(costs_before) < 2 or len(costs_after) < MIN_REWARDS:
        return None
    count = len(costs_after) // 2
    before, after = costs_before[-count:], costs_after[count:]
    if fmean(before) - fmean(after) <= ERRORS * math.hypot(_error(before), _error(after)):
        return None
    text = f"{fall.describe(record)}, while the reward rose from {-fmean(before):.3g} to {-fmean(after):.3g}"
    sign = fall.curve.sign
    return Evidence(
        "reward_hacked", fall.weight, fall.onset, text, metric=fall.curve.name,
        level=sign * fall.curve.values[-1], bound=sign * fall.best,
    )  # fmt: skip


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two values."""
    return stdev(values) / math.sqrt(len(values))


def _strongest(candidates: Iterable[Evidence | None]) -> Evidence | None:
    return max(filter(None, candidates), key=lambda evidence: evidence.weight, default=None)
