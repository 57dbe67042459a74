"""Rules for runs that do not learn: dead ones, stuck ones, and those on a plateau."""

from __future__ import annotations

import math
from statistics import median
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import Curve, held_out_curves, objective_curve
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective

GRAD_NORM, LEARNING_RATE = "grad_norm", "learning_rate"
MIN_READINGS: Final = 8
"""Minimum number of readings for a verdict on the whole run."""
DEAD_SHARE: Final = 0.9
"""Minimum share of the last readings that are the same number. The few others may come from the logger."""
MIN_DEAD_SHARE: Final = 0.5
"""Minimum share of the run's readings that are dead."""
MIN_GAIN: Final = 0.015
"""Minimum fall of a loss, as a share of its start, below which the run has not learnt."""
CHANCE_TOLERANCE: Final = 0.02
"""Maximum distance of a loss from that of guessing, as a share of it."""
MAX_CLASSES: Final = 20
"""Maximum number of classes whose guessing loss, the logarithm of their number, is recognised."""


def dead(record: RunRecord) -> Evidence | None:
    """The loss or the gradient is exactly 0, or does not change at all, although the rate is above 0."""
    rates = record.values(LEARNING_RATE)
    if rates and max(rates) <= 0:
        return None  # the rate explains it
    has_reward = objective(record.started).name == "reward"
    names = [GRAD_NORM] if has_reward else ["loss", GRAD_NORM]
    names += [spec.name for spec in record.started.metrics if spec.name.endswith("_loss") and not spec.held_out]
    for name in dict.fromkeys(names):
        points = record.finite(name)
        start = _constant_since([value for _, value in points])
        if start is None or (name == GRAD_NORM and points[start][1] != 0):
            continue
        value, count = points[-1][1], len(points) - start
        text = f"{name} is {value:g} in the last {count} of {len(points)} readings, so nothing is learnt"
        return Evidence("dead", 0.95, points[start][0], text)
    return None


def _constant_since(values: list[float]) -> int | None:
    """Return the index from which nearly all values equal the last one, if they are most of the run."""
    if len(values) < MIN_READINGS:
        return None
    constant, equal, start = values[-1], 0, None
    for count, value in enumerate(reversed(values), 1):
        equal += value == constant
        if value == constant and equal >= DEAD_SHARE * count:
            start = len(values) - count
    return (
        start if start is not None and len(values) - start >= max(MIN_READINGS, MIN_DEAD_SHARE * len(values)) else None
    )


def stuck(record: RunRecord) -> Evidence | None:
    """The loss never fell: its best level is within the noise of the first one, or within MIN_GAIN of it."""
    if objective(record.started).name == "reward":
        return None
    curve = objective_curve(record)
    if len(curve.values) < MIN_READINGS or dead(record):
        return None
    start = median(curve.values[: max(2, curve.width)])
    gain = start - min(curve.levels)
    if start <= 0 or gain > MIN_GAIN * start or _held_out_gained(record):
        return None
    text = f"the loss went from {curve.show(start)} to {curve.show(curve.last)} in {len(curve.values)} readings"
    classes = _classes_at_chance(curve)
    if classes:
        text += f", the loss of guessing among {classes} classes ({math.log(classes):.4g})"
    return Evidence("stuck", 0.9 if classes else 0.7, curve.ticks[0], text)


def _classes_at_chance(curve: Curve) -> int | None:
    level = median(curve.levels)
    classes = round(math.exp(level)) if 0 < level < math.log(MAX_CLASSES) else 0
    is_near = classes >= 2 and abs(level - math.log(classes)) <= CHANCE_TOLERANCE * level
    return classes if is_near else None


def _held_out_gained(record: RunRecord) -> bool:
    """Return whether any held-out metric became better by more than noise."""
    for curve in held_out_curves(record):
        if len(curve.values) < 2:
            continue
        gain = curve.values[0] - min(curve.levels)
        if gain > max(3 * curve.noise, 2 * MIN_GAIN * abs(curve.values[0])):
            return True
    return False
