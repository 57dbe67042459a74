"""Rules for runs that break: values that are not finite, a loss that rises and stays high, spikes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median
from typing import Final

from oven_agents.diagnosis.finding import MIN_ADVICE_CONFIDENCE, Evidence
from oven_agents.diagnosis.rules.curve import Curve, objective_curve
from oven_agents.diagnosis.rules.sequential import first_excess
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective

GRAD_NORM: Final = "grad_norm"
MIN_LAST: Final = 3
"""Number of last readings that must not be finite for a run that has broken for good."""
MIN_LOST_SHARE: Final = 0.3
"""Minimum share of the gain that a diverged run has lost at its end."""
MIN_RISE: Final = 0.2
"""Minimum rise of the loss above its best level, as a share of it."""
NOISES: Final = 4.0
"""Minimum rise of the loss above its best level, in standard deviations of a block."""
MIN_LASTING_SHARE: Final = 0.75
"""Minimum rise of the last level as a share of that of the level before it. Otherwise, the loss is coming back."""
ONSET_SHARE: Final = 0.1
"""Share of the rise from which a block belongs to it."""
ONSET_NOISES: Final = 2.0
"""The same in standard deviations of a block."""


def not_finite(record: RunRecord) -> Evidence | None:
    """A loss or the gradient's norm is NaN or infinite. Mixed precision skips steps with such a gradient, so single
    ones are normal."""
    specs = [spec for spec in record.started.metrics if spec.name in record.series]
    losses = sorted(spec.name for spec in specs if spec.name.rsplit("/", 1)[-1].endswith("loss"))
    strongest: Evidence | None = None
    for name in dict.fromkeys(["loss", *losses, GRAD_NORM]):
        ticks, values = record.series.get(name, ([], []))
        bad = [index for index, value in enumerate(values) if not math.isfinite(value)]
        if not bad or (len(bad) == len(values) and name not in ("loss", GRAD_NORM)):
            continue  # a metric that never had a value is not a fault of the training
        first_of_last = _first_of_last_bad(values)
        last_count = len(values) - first_of_last
        if last_count >= MIN_LAST:
            extent = f"of the last {last_count} of {len(values)}" if first_of_last else str(last_count)
            text = f"{name} is NaN or infinite in all {extent} readings"
            weight, tick = 0.95, ticks[first_of_last]
        else:
            text = f"{name} is NaN or infinite in {len(bad)} of {len(values)} readings"
            weight, tick = (0.2 if name == GRAD_NORM else 0.55), ticks[bad[0]]
        if strongest is None or weight > strongest.weight:
            remedy = "no action needed: mixed precision skips such steps; if it recurs, lower the learning rate"
            is_usual = weight < MIN_ADVICE_CONFIDENCE
            strongest = Evidence("nan", weight, tick, text, metric=name, remedy=remedy if is_usual else "")
    return strongest


def _first_of_last_bad(values: Sequence[float]) -> int:
    """Return the index of the first of the last values that are all not finite, or the number of values."""
    return next((index for index in range(len(values), 0, -1) if math.isfinite(values[index - 1])), 0)


def diverged(record: RunRecord) -> Evidence | None:
    """The loss rose far above its best level and stayed there until the end."""
    if objective(record.started).name == "reward":
        return None
    curve = objective_curve(record)
    if len(curve.values) < 12:
        return None
    rise = find_rise(curve)
    if rise is None:
        return None
    onset, best, last = rise
    text = f"the loss rose from {curve.show(best)} to {curve.show(last)} and did not come back"
    return Evidence("diverged", 0.85, curve.block_ticks[onset], text)


def find_rise(curve: Curve, min_lost_share: float = MIN_LOST_SHARE) -> tuple[int, float, float] | None:
    """Return the block at which a curve began to rise for good, its best level and its last level, or None."""
    blocks, levels = list(curve.blocks), list(curve.levels)
    if min(blocks) > 0 and max(blocks) > 3 * min(blocks):  # a loss over orders of magnitude
        blocks, levels = [math.log(value) for value in blocks], [math.log(value) for value in levels]
    scaled = Curve(curve.name, curve.block_ticks, blocks, curve.sign)
    best_index = min(range(len(levels)), key=levels.__getitem__)
    best, last = levels[best_index], levels[-1]
    start = median(blocks[: max(2, curve.width)])
    gain, lost = start - best, last - best
    best_raw, last_raw = curve.levels[best_index], curve.last
    if lost < max(min_lost_share * gain, NOISES * scaled.noise) or last_raw - best_raw < MIN_RISE * abs(best_raw):
        return None
    after = blocks[best_index + curve.width :]
    excess = first_excess(after, best + lost / 2 - scaled.noise, scaled.noise)
    if excess is None:
        return None
    onset = best_index + curve.width + excess
    risen = best + max(ONSET_SHARE * lost, ONSET_NOISES * scaled.noise)
    while onset > best_index + 1 and blocks[onset - 1] > risen:
        onset -= 1  # the test needs several readings, and the rise may be slow
    if last - best < MIN_LASTING_SHARE * (levels[-1 - curve.width] - best):
        return None  # the curve is coming back
    return onset, best_raw, last_raw
