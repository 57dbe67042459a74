"""Rules for runs that get better at their training and worse at everything else."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import Curve, held_out_curves, objective_curve
from oven_agents.diagnosis.rules.learning import classes_at_chance
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective

MIN_READINGS: Final = 4
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
PARTIAL: Final = ("loss", "precision", "recall")
"""Parts of the names of metrics by which no one chooses a checkpoint alone."""
MIN_IMPROVED: Final = 0.02
"""Minimum gain of a task's metric, as a share of its value, that speaks against a worse loss."""
NEIGHBOURS: Final = 5
"""Number of training losses that give a level."""
MIN_REWARDS: Final = 8
"""Minimum number of rewards after the best held-out reading."""
ERRORS: Final = 3.0
"""Minimum rise of the reward in standard errors."""


def overfit(record: RunRecord) -> Evidence | None:
    """A held-out loss rises above its best reading while the training loss falls, or rises, too (diverged)."""
    if objective(record.started).name == "reward":
        return None
    curves = [curve for curve in held_out_curves(record) if curve.sign > 0]
    return _strongest(_overfit(record, curve) for curve in curves)


def _overfit(record: RunRecord, held_out: Curve) -> Evidence | None:
    best = _best_before_fall(held_out)
    if best is None:
        return None
    training_before, training_after = objective_curve(record).split(held_out.ticks[best])
    before, after = training_before[-NEIGHBOURS:], training_after[-NEIGHBOURS:]
    if not before or not after:
        return None
    fall = (fmean(before) - fmean(after)) / max(abs(fmean(before)), 1e-12)
    if -MIN_LEARNT < fall < MIN_LEARNT:
        return None
    movement = "fell" if fall > 0 else "rose"
    text = (
        f"{_describe(record, held_out, best)}, while the training loss {movement} from {fmean(before):.3g} to "
        f"{fmean(after):.3g}"
    )
    tick = held_out.ticks[_last_as_good(held_out, best)]
    if fall < 0:
        return Evidence("diverged", 0.6, tick, text, metric=held_out.name)
    remedy = (
        f"use the checkpoint of step {record.step_at(held_out.ticks[best]):,}, or if it was not saved, train again and "
        "stop there; to improve on it, add training data, or regularise (dropout, weight decay, augmentation)"
    )
    weight = _weight(held_out, best)
    cost = f"the {record.steps[-1] - record.step_at(held_out.ticks[best]):,} steps after it, because you go back"
    if classes_at_chance(held_out.values[best]) == 2:  # other losses may be near those of more classes by chance
        text += ". The best value is that of guessing between two classes"
        remedy = "check the labels and the split of the held-out data, because the model was never better than guessing"
        cost = "the time to check them"
    elif task := _improved_task_metric(record, held_out.ticks[best]):
        text += f". Meanwhile {task} improved"
        remedy = f"if {task.split(' ', 1)[0]} is what matters, use its best checkpoint; otherwise {remedy}"
        weight = min(weight, 0.6)
    return Evidence("overfit", weight, tick, text, metric=held_out.name, remedy=remedy, cost=cost)


def _improved_task_metric(record: RunRecord, tick: int) -> str:
    """Return the held-out metric other than a loss that improved most since the tick, with its readings, or an empty
    string if none did by MIN_IMPROVED."""
    improved: dict[str, float] = {}
    for curve in held_out_curves(record):
        before, after = curve.split(tick)
        if not before or not after or any(word in curve.name for word in PARTIAL):
            continue
        share = (before[-1] - after[-1]) / max(abs(before[-1]), 1e-12)
        if share >= MIN_IMPROVED:
            improved[f"{curve.name} ({curve.show(before[-1])} → {curve.show(after[-1])})"] = share
    return max(improved, key=lambda text: improved[text], default="")


def reward_hacked(record: RunRecord) -> Evidence | None:
    """The reward rises while held-out quality falls: the policy learns what the reward pays for, and not the task."""
    if objective(record.started).name != "reward":
        return None
    return _strongest(_reward_hacked(record, curve) for curve in held_out_curves(record))


def _reward_hacked(record: RunRecord, held_out: Curve) -> Evidence | None:
    best = _best_before_fall(held_out)
    if best is None:
        return None
    costs_before, costs_after = objective_curve(record).split(held_out.ticks[best])
    count = len(costs_after) // 2
    before, after = costs_before[-count:], costs_after[-count:]
    if len(before) < 2 or len(costs_after) < MIN_REWARDS:
        return None
    rise = fmean(before) - fmean(after)  # rewards are negated
    if rise <= ERRORS * math.hypot(_error(before), _error(after)):
        return None
    text = (
        f"{_describe(record, held_out, best)}, while the reward rose from {-fmean(before):.3g} to {-fmean(after):.3g}"
    )
    tick = held_out.ticks[_last_as_good(held_out, best)]
    return Evidence("reward_hacked", _weight(held_out, best), tick, text, metric=held_out.name)


def _best_before_fall(curve: Curve) -> int | None:
    """Return the index of the best reading if the last two are much worse, or None."""
    values = curve.values
    if len(values) < MIN_READINGS:
        return None
    best = min(range(len(values)), key=values.__getitem__)
    lost = min(values[-2:]) - values[best]
    is_large = lost >= max(MIN_LOST * abs(values[best]), NOISES * curve.noise)
    return best if is_large and best < len(values) - 2 else None


def _last_as_good(curve: Curve, best: int) -> int:
    """Return the index of the last reading that is about as good as the best one."""
    limit = curve.values[best] + ONSET_SHARE * (min(curve.values[-2:]) - curve.values[best])
    return max(index for index, value in enumerate(curve.values) if value <= limit)


def _weight(curve: Curve, best: int) -> float:
    lost = min(curve.values[-2:]) - curve.values[best]
    return 0.85 if lost >= MUCH_LOST * abs(curve.values[best]) else 0.6


def _describe(record: RunRecord, curve: Curve, best: int) -> str:
    step = record.step_at(curve.ticks[best])
    first, last = curve.show(curve.values[best]), curve.show(curve.values[-1])
    return f"{curve.name} was best at step {step:,} ({first}) and is {last} at the end"


def _error(values: Sequence[float]) -> float:
    """Return the standard error of the mean of at least two values."""
    return stdev(values) / math.sqrt(len(values))


def _strongest(candidates: Iterable[Evidence | None]) -> Evidence | None:
    return max(filter(None, candidates), key=lambda evidence: evidence.weight, default=None)
