"""Rules for runs that do not learn: dead ones, stuck ones, and rewards that do not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import held_out_curves, objective_curve
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
MIN_GAIN_OF_TWO: Final = 0.05
"""The same, for a loss near that of guessing between two classes. Other losses are near such a value by chance."""
CHANCE_TOLERANCE: Final = 0.02
"""Maximum distance of a loss from that of guessing, as a share of it."""
MAX_CLASSES: Final = 20
"""Maximum number of classes whose guessing loss, the logarithm of their number, is recognised."""
MAX_EARLIER_SHARE: Final = 0.1
"""Share of the steps that may precede the log. A log that begins later continues a run that has learnt already."""
MIN_REWARDS: Final = 100
"""Minimum number of rewards that show that the run does not move."""
SMALL_GAIN: Final = 0.5
"""Gain in reward, in standard deviations of one reading, that a run on a plateau has certainly not reached."""
ERRORS: Final = 2.0
"""Standard errors of a bound that is exceeded once in 44 runs."""


def dead(record: RunRecord) -> Evidence | None:
    """The loss or the gradient is exactly 0, or does not change at all, although the rate is above 0."""
    rates = record.values(LEARNING_RATE)
    if rates and max(rates) <= 0:
        return None  # the rate explains it
    has_reward = objective(record.started).name == "reward"
    losses = sorted(spec.name for spec in record.started.metrics if spec.name.endswith("_loss") and not spec.held_out)
    for name in dict.fromkeys(["loss", GRAD_NORM, *losses]):
        points = record.finite(name)
        start = _constant_since([value for _, value in points])
        if start is None or (name == GRAD_NORM and points[start][1] != 0):
            continue
        if has_reward and name != GRAD_NORM and _reward_gained(record):
            continue  # the loss of a policy gradient may be 0 at every step
        count = sum(value == points[-1][1] for _, value in points)
        text = f"{name} is {points[-1][1]:g} in {count} of {len(points)} readings, so nothing is learnt"
        return Evidence("dead", 0.95, points[start][0], text)
    return None


def _reward_gained(record: RunRecord) -> bool:
    """Return whether the reward, or any other quality, is higher in the second half than in the first."""
    for spec in record.started.metrics:
        values = record.values(spec.name) if spec.better == "up" else []
        half = len(values) // 2
        if half and median(values[half:]) > median(values[:half]):
            return True
    return False


def _constant_since(values: Sequence[float]) -> int | None:
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
    if len(curve.values) < MIN_READINGS or record.steps[0] > MAX_EARLIER_SHARE * max(record.steps) or dead(record):
        return None
    start, end = median(curve.values[: max(2, curve.width)]), median(curve.blocks[len(curve.blocks) // 2 :])
    gain = max(start - end, start - min(curve.levels) - 2 * curve.noise)
    classes = _classes_at_chance(end)
    if start <= 0 or gain > (MIN_GAIN_OF_TWO if classes == 2 else MIN_GAIN) * start or _held_out_gained(record):
        return None
    text = f"the {curve.name} went from {curve.show(start)} to {curve.show(curve.last)} in {len(curve.values)} readings"
    if classes:
        text += f"; guessing among {classes} classes gives {math.log(classes):.4g}"
    return Evidence("stuck", 0.9 if classes else 0.7, curve.ticks[0], text)


def _classes_at_chance(loss: float) -> int | None:
    """Return the number of classes among which guessing gives this loss, or None."""
    classes = round(math.exp(loss)) if 0 < loss < math.log(MAX_CLASSES + 1) else 0
    return classes if classes >= 2 and abs(loss - math.log(classes)) <= CHANCE_TOLERANCE * loss else None


def flat_reward(record: RunRecord) -> Evidence | None:
    """The reward did not rise over the whole run, by a bound that small gains would exceed."""
    if objective(record.started).name != "reward":
        return None
    curve = objective_curve(record)
    if len(curve.values) < MIN_REWARDS:
        return None
    third = len(curve.values) // 3
    first, last = [-value for value in curve.values[:third]], [-value for value in curve.values[-third:]]
    spread = stdev(first)
    gain = fmean(last) - fmean(first)
    error = math.hypot(spread, stdev(last)) / math.sqrt(third)
    if spread <= 0 or gain < -ERRORS * error or gain + ERRORS * error > SMALL_GAIN * spread:
        return None
    text = f"the reward was {fmean(first):.3g} in the first third of the run and is {fmean(last):.3g} in the last"
    return Evidence("plateau", 0.5, curve.ticks[0], text)


def _held_out_gained(record: RunRecord) -> bool:
    """Return whether any held-out metric became better by more than noise."""
    for curve in held_out_curves(record):
        if len(curve.values) < 2:
            continue
        gain = curve.values[0] - min(curve.levels)
        if gain > max(3 * curve.noise, 2 * MIN_GAIN * abs(curve.values[0])):
            return True
    return False
