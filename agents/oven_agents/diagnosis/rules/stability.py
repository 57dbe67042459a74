"""Rules for runs that break: values that are not finite, a loss that rises and stays high, spikes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.kinds import NOTHING, lower_rate_from
from oven_agents.diagnosis.rules.curve import Curve, most_improved, noise_of, objective_curve, show_improvement
from oven_agents.diagnosis.rules.sequential import first_excess
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective

GRAD_NORM: Final = "grad_norm"
MIN_READINGS: Final = 12
"""Minimum number of readings that show a rise for good."""
HEALED_READINGS: Final = 20
"""Number of last readings that are finite again after which a loss has healed."""
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
    """A loss or the gradient's norm is NaN or infinite. Loss scaling in fp16 skips steps with such a gradient, so
    single ones are normal."""
    specs = [spec for spec in record.started.metrics if spec.name in record.series]
    losses = sorted(spec.name for spec in specs if spec.name.rsplit("/", 1)[-1].endswith("loss"))
    candidates = [
        _not_finite(name, *record.series[name])
        for name in dict.fromkeys(["loss", *losses, GRAD_NORM])
        if name in record.series
    ]
    return max(filter(None, candidates), key=lambda evidence: evidence.weight, default=None)


def _not_finite(name: str, ticks: Sequence[int], values: Sequence[float]) -> Evidence | None:
    bad = [index for index, value in enumerate(values) if not math.isfinite(value)]
    if not bad or (len(bad) == len(values) and name not in ("loss", GRAD_NORM)):
        return None  # a metric that never had a value is not a fault of the training
    first_of_last = _first_of_last_bad(values)
    last_count = len(values) - first_of_last
    evidence = partial(Evidence, "nan", metric=name, level=values[-1], bound=values[bad[0] - 1] if bad[0] else math.nan)
    if last_count >= MIN_LAST:
        extent = f"of the last {last_count} of {len(values)}" if first_of_last else str(last_count)
        return evidence(0.95, ticks[first_of_last], f"{name} is NaN or infinite in all {extent} readings")
    text = f"{name} is NaN or infinite in {len(bad)} of {len(values)} readings"
    if name == GRAD_NORM:
        remedy = (
            "no action needed with fp16, whose loss scaling skips such steps; with bf16 or fp32, or if it recurs, clip "
            "gradients or lower the learning rate"
        )
        return evidence(0.2, ticks[bad[0]], text, remedy=remedy, cost=NOTHING)
    last_good_count = len(values) - 1 - bad[-1]
    if last_good_count >= HEALED_READINGS:
        text += f", but in none of the last {last_good_count}"
        return evidence(0.4, ticks[bad[0]], text, remedy="no action needed, unless it recurs", cost=NOTHING)
    return evidence(0.55, ticks[bad[0]], text)


def _first_of_last_bad(values: Sequence[float]) -> int:
    """Return the index of the first of the last values that are all not finite, or the number of values."""
    return next((index for index in range(len(values), 0, -1) if math.isfinite(values[index - 1])), 0)


def diverged(record: RunRecord) -> Evidence | None:
    """The loss rose far above its best level and stayed there until the end."""
    if objective(record.started).name == "reward":
        return None
    curve = objective_curve(record)
    if len(curve.values) < MIN_READINGS:
        return None
    rise = find_rise(curve)
    if rise is None:
        return None
    onset, best, last = rise
    text = f"the loss rose from {curve.show(best)} to {curve.show(last)} and did not come back"
    tick = curve.block_ticks[onset]
    remedy, cost = lower_rate_from(record.steps, record.step_at(last_good_tick(curve, onset)))
    evidence = partial(Evidence, "diverged", tick=tick, level=curve.sign * last, bound=curve.sign * best)
    improved = most_improved(record, tick)
    if improved is None:
        return evidence(0.85, text=text, remedy=remedy, cost=cost)
    text += f". {show_improvement(improved, tick, record)}, so the model itself may be fine"
    remedy = (
        f"keep the run, and use its checkpoint with the best {improved.name} (step "
        f"{record.step_at(improved.best_tick):,}); look for what changed at step {record.step_at(tick):,}: the data, "
        f"or how the loss is computed or logged; lower the learning rate only if {improved.name} gets worse, too"
    )
    return evidence(0.5, text=text, remedy=remedy, cost=NOTHING)


def last_good_tick(curve: Curve, onset: int) -> int:
    """Return a tick that is certainly before a rise: one block before the last one that is still as good as before."""
    return curve.block_ticks[max(0, onset - 2)]


def find_rise(curve: Curve, min_lost_share: float = MIN_LOST_SHARE) -> tuple[int, float, float] | None:
    """Return the block at which a curve began to rise for good, its best level and its last level, or None."""
    blocks, levels = list(curve.blocks), list(curve.levels)
    if min(blocks) > 0 and max(blocks) > 3 * min(blocks):  # a loss over orders of magnitude
        blocks, levels = [math.log(value) for value in blocks], [math.log(value) for value in levels]
    noise = noise_of(blocks)
    best_index = min(range(len(levels)), key=levels.__getitem__)
    best, last = levels[best_index], levels[-1]
    start = median(blocks[: max(2, curve.width)])
    gain, lost = start - best, last - best
    best_raw, last_raw = curve.levels[best_index], curve.last
    if lost < max(min_lost_share * gain, NOISES * noise) or last_raw - best_raw < MIN_RISE * abs(best_raw):
        return None
    after = blocks[best_index + curve.width :]
    excess = first_excess(after, best + lost / 2 - noise, noise)
    if excess is None:
        return None
    onset = best_index + curve.width + excess
    risen = best + max(ONSET_SHARE * lost, ONSET_NOISES * noise)
    while onset > best_index + 1 and blocks[onset - 1] > risen:
        onset -= 1  # the test needs several readings, and the rise may be slow
    if last - best < MIN_LASTING_SHARE * (levels[-1 - curve.width] - best):
        return None  # the curve is coming back
    return onset, best_raw, last_raw
