"""Rules for runs that fit their training data only."""

from __future__ import annotations

from bisect import bisect_right
from statistics import fmean
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import Curve, held_out_curves, objective_curve
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective

MIN_READINGS: Final = 4
"""Minimum number of held-out readings: the best one, one before or after it, and two that are worse."""
MIN_RISE: Final = 0.1
"""Minimum rise of a held-out loss above its best reading, as a share of it."""
CLEAR_RISE: Final = 0.4
"""Rise, as a share of the best reading, from which the finding says to act."""
NOISES: Final = 4.0
"""Minimum rise in standard deviations of a reading."""
ONSET_SHARE: Final = 0.05
"""Share of the rise below which a reading is still as good as the best one."""
MIN_LEARNT: Final = 0.2
"""Minimum fall of the training loss after the best held-out reading, as a share of it."""
NEIGHBOURS: Final = 5
"""Number of training losses that give a level."""


def overfit(record: RunRecord) -> Evidence | None:
    """A held-out loss rises above its best reading while the training loss falls, or rises, too (diverged)."""
    if objective(record.started).name == "reward":
        return None
    training = objective_curve(record)
    candidates = [_overfit(record, curve, training) for curve in held_out_curves(record) if curve.sign > 0]
    return max(filter(None, candidates), key=lambda evidence: evidence.weight, default=None)


def _overfit(record: RunRecord, held_out: Curve, training: Curve) -> Evidence | None:
    values = held_out.values
    if len(values) < MIN_READINGS:
        return None
    best = min(range(len(values)), key=values.__getitem__)
    rise = min(values[-2:]) - values[best]
    if best >= len(values) - 2 or rise < max(MIN_RISE * abs(values[best]), NOISES * held_out.noise):
        return None
    tick = held_out.ticks[best]
    split = bisect_right(training.ticks, tick)
    before, after = training.values[:split][-NEIGHBOURS:], training.values[split:][-NEIGHBOURS:]
    if not before or not after:
        return None
    fall = (fmean(before) - fmean(after)) / max(abs(fmean(before)), 1e-12)
    if -MIN_LEARNT < fall < MIN_LEARNT:
        return None
    as_good = [index for index, value in enumerate(values) if value <= values[best] + ONSET_SHARE * rise]
    text = (
        f"{held_out.name} was best at step {record.step_at(tick)} ({values[best]:.4g}) and is {values[-1]:.4g} at the "
        f"end, while the training loss {'fell' if fall > 0 else 'rose'} from {fmean(before):.3g} to {fmean(after):.3g}"
    )
    if fall < 0:
        return Evidence("diverged", 0.6, held_out.ticks[as_good[-1]], text, metric=held_out.name)
    weight = 0.85 if rise >= CLEAR_RISE * abs(values[best]) else 0.6
    return Evidence("overfit", weight, held_out.ticks[as_good[-1]], text, metric=held_out.name)
