"""Rules for runs that do not learn: dead ones, stuck ones, and rewards that do not move."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median, stdev
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import MIN_READINGS, Curve, has_progressed, held_out_curves, objective_curve
from oven_agents.diagnosis.rules.stability import MIN_RISE
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective

GRAD_NORM, LEARNING_RATE = "grad_norm", "learning_rate"
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
CHANCE_SHARE: Final = 0.1
"""The same, as a share of the distance between the losses of guessing among N and N + 1 classes, which is about 1 / N.
Otherwise, any loss above 2 would be near one of them."""
HUGE_LOSS: Final = 1e6
"""Loss above which the scale of the data is the likely fault."""
MAX_CLASSES: Final = 20
"""Maximum number of classes whose guessing loss, the logarithm of their number, is recognised."""
MAX_EARLIER_SHARE: Final = 0.1
"""Share of the steps that may precede the log. A log that begins later continues a run that has learnt already."""
MIN_REWARDS: Final = 100
"""Minimum number of rewards that show that the run does not move."""
CEILING_COUNT: Final = 0.05
"""Minimum share of rewards that are exactly the highest one at the reward's ceiling."""
CEILING_SHARE: Final = 0.9
"""Minimum median of rewards at their ceiling, as a share of it."""
SMALL_GAIN: Final = 0.5
"""Gain in reward, in standard deviations of one reading, that a run on a plateau has certainly not reached."""
ERRORS: Final = 2.0
"""Standard errors of a bound that is exceeded once in 44 runs."""
SURE_ERRORS: Final = 3.0
"""Standard errors of a gain that is not due to noise, also if several gains are measured."""
MEDIAN_ERROR: Final = 1.25
"""Standard error of the median of normal values, as a multiple of that of their mean."""
GUESSES: Final = {2: "what an output of 0.5 everywhere gives"}
"""Explanation of a loss at chance, by the number of classes."""
ROUNDED_SHARE: Final = 0.01
"""Share of its first value below which a loss has converged and may be constant in the log."""
NEARLY_FALLEN: Final = 0.1
"""Share of its fall that a loss may still have ahead just before it is constant."""


def dead(record: RunRecord) -> Evidence | None:
    """The loss or the gradient is exactly 0, or does not change at all, although the rate is above 0."""
    rates = record.values(LEARNING_RATE)
    if rates and max(rates) <= 0:
        return None  # the rate explains it
    has_reward = objective(record.started).name == "reward"
    losses = sorted(spec.name for spec in record.started.metrics if spec.name.endswith("_loss") and not spec.held_out)
    for name in dict.fromkeys(["loss", GRAD_NORM, *losses]):
        points = record.finite(name)
        values = [value for _, value in points]
        start = _constant_since(values)
        if start is None or (name == GRAD_NORM and values[start] != 0):
            continue
        if has_reward and name != GRAD_NORM and (start == 0 or _reward_gained(record) or any(record.values(GRAD_NORM))):
            continue  # the loss of a policy gradient may be 0 at every step
        if name == "loss" and _has_converged(values, start):
            return None
        count = sum(value == values[-1] for value in values)
        text = f"{name} is exactly {values[-1]:g} in {count} of {len(values)} readings"
        remedy = ""
        if has_reward:
            remedy = "check that rewards differ within a batch, and that advantages are not all 0; then start again"
        if _others_move(record, name, points[start][0], losses):
            text += " while other losses of the training change, so one part of it is not learnt"
            remedy = "check that the data have labels for this part, and that its weight is not 0; then start again"
        else:
            text += ", so nothing is learnt"
        return Evidence(
            "dead", 0.95, points[start][0], text, metric=name, remedy=remedy,
            level=values[-1], bound=values[0],
        )  # fmt: skip
    return None


def _others_move(record: RunRecord, name: str, tick: int, losses: Sequence[str]) -> bool:
    """Return whether another training loss still changes since the tick."""
    return any(len(set(record.values(loss, first=tick))) > 1 for loss in losses if loss != name)


def _has_converged(losses: Sequence[float], start: int) -> bool:
    """Return whether the losses fell step by step until the log rounds them to 0. A broken loss jumps to 0."""
    first, last = losses[0], losses[-1]
    return start > 0 and last <= ROUNDED_SHARE * first and losses[start - 1] - last <= NEARLY_FALLEN * (first - last)


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
    """The loss never fell by more than noise, not even to a level that it later lost again."""
    if objective(record.started).name == "reward":
        return None
    curve = objective_curve(record)
    if len(curve.values) < MIN_READINGS or not _shows_start(record, curve) or dead(record):
        return None
    start, end = median(curve.values[: max(2, curve.width)]), median(curve.blocks[len(curve.blocks) // 2 :])
    classes = classes_at_chance(end)
    min_gain = (MIN_GAIN_OF_TWO if classes == 2 else MIN_GAIN) * start
    if start <= 0 or end > (1 + MIN_RISE) * start:
        return None  # it rose, which is another fault
    if _has_gained(curve, start, end, min_gain) or _held_out_gained(record):
        return None
    text = (
        f"the {curve.name} hardly fell: its median was {curve.show(start)} at the start and {curve.show(end)} in the "
        f"second half of {len(curve.values)} readings"
    )
    if classes:
        text += (
            f" ({math.log(classes):.4g} = ln {classes}, {GUESSES.get(classes, f'guessing among {classes} classes')})"
        )
    remedy = ""
    if start > HUGE_LOSS:
        remedy = (
            "such a loss is far too large: check that inputs and targets are about 1 in size, and that the loss is a "
            "mean and not a sum; if they are, start again with a learning rate lower by a factor of 10 and clipped "
            "gradients"
        )
    return Evidence(
        "stuck", 0.9 if classes else 0.7, curve.ticks[0], text, remedy=remedy, level=end, bound=start - min_gain
    )


def _shows_start(record: RunRecord, curve: Curve) -> bool:
    """Return whether the record has the start of the training, and enough of it to expect progress."""
    return record.steps[0] <= MAX_EARLIER_SHARE * max(record.steps) and has_progressed(record, len(curve.values))


def _has_gained(curve: Curve, start: float, end: float, min_gain: float) -> bool:
    """Return whether the loss may have fallen by more than `min_gain`. Gains are measured from starts of several
    lengths, because a loss may fall within its first readings, or so slowly that only many readings show it."""
    blocks, width = curve.blocks, curve.width
    end_error, gain, gain_error = curve.noise / math.sqrt(len(blocks) / 2), 0.0, 0.0
    for values, noise in (
        (curve.values[:1], curve.reading_noise),
        (curve.values[: max(2, width)], curve.reading_noise),
        (blocks[:width], curve.noise),
        (blocks[: max(1, len(blocks) // 3)], curve.noise),
    ):
        gain = median(values) - end
        gain_error = MEDIAN_ERROR * math.hypot(noise / math.sqrt(len(values)), end_error)
        if gain > max(min_gain, SURE_ERRORS * gain_error):
            return True
    is_unclear = gain + ERRORS * gain_error > 2 * min_gain  # by the longest start, which is the most precise
    return is_unclear or start - min(curve.levels) > min_gain + ERRORS * curve.noise


def classes_at_chance(loss: float) -> int | None:
    """Return the number of classes among which guessing gives this loss, or None."""
    classes = round(math.exp(loss)) if 0 < loss < math.log(MAX_CLASSES + 1) else 0
    tolerance = min(CHANCE_TOLERANCE * loss, CHANCE_SHARE / classes) if classes >= 2 else 0.0
    return classes if classes >= 2 and abs(loss - math.log(classes)) <= tolerance else None


def flat_reward(record: RunRecord) -> Evidence | None:
    """The reward did not rise over the whole run, by a bound that small gains would exceed."""
    if objective(record.started).name != "reward":
        return None
    curve = objective_curve(record)
    if len(curve.values) < MIN_REWARDS or not _shows_start(record, curve):
        return None
    third = len(curve.values) // 3
    first, last = [-value for value in curve.values[:third]], [-value for value in curve.values[-third:]]
    if _is_at_ceiling(last):
        return None
    spread = stdev(first)
    gain = fmean(last) - fmean(first)
    error = math.hypot(spread, stdev(last)) / math.sqrt(third)
    if spread <= 0 or gain < -ERRORS * error or gain + ERRORS * error > SMALL_GAIN * spread:
        return None
    text = (
        f"the reward did not rise: its mean was {fmean(first):.3g} in the first third of the run and {fmean(last):.3g} "
        "in the last"
    )
    return Evidence("plateau", 0.5, curve.ticks[0], text, level=fmean(last), bound=fmean(first))


def _is_at_ceiling(rewards: Sequence[float]) -> bool:
    """Return whether many rewards equal the highest one, and most of the others are close to it."""
    highest = max(rewards)
    return rewards.count(highest) >= CEILING_COUNT * len(rewards) and median(rewards) >= CEILING_SHARE * highest > 0


def _held_out_gained(record: RunRecord) -> bool:
    """Return whether any held-out metric became better by more than noise."""
    for curve in held_out_curves(record):
        if len(curve.values) < 2:
            continue
        gain = curve.values[0] - min(curve.levels)
        if gain > max(3 * curve.noise, 2 * MIN_GAIN * abs(curve.values[0])):
            return True
    return False
