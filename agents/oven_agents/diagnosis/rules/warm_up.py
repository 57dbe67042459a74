"""A rule for runs that start at their full learning rate and are harmed by it at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import median
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import noise_of, objective_curve
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective

GRAD_NORM, LEARNING_RATE = "grad_norm", "learning_rate"
MIN_READINGS: Final = 30
"""Minimum number of readings. With fewer, the first steps are one or two readings."""
EARLY_SHARE: Final = 0.1
"""Share of the readings in which the harm must begin. A warm-up seldom takes more."""
MAX_EARLY: Final = 100
"""Maximum number of these readings."""
FULL_RATE: Final = 0.9
"""Share of the highest rate from which the first reading is at the full rate."""
MIN_RISE: Final = 0.2
"""Minimum rise of the loss above its first reading, as a share of it."""
NOISES: Final = 6.0
"""The same in standard deviations of one reading."""
MIN_NORM_RATIO: Final = 10.0
"""Minimum ratio of a harmful gradient norm to the first one, and to the usual one. Norms vary more than losses."""

IF_LOSS_SUFFERS: Final = (
    "no action needed if the loss is fine; otherwise add a linear warm-up over the first 1 to 5 % of the steps"
)


def missing_warm_up(record: RunRecord) -> Evidence | None:
    """The rate is at its peak from the first step on, and the loss or the gradient's norm rises in the first steps."""
    if objective(record.started).name == "reward" or record.steps[0] > max(record.steps) / MIN_READINGS:
        return None  # a log that begins later does not show the first steps
    rates = record.values(LEARNING_RATE)
    if not rates or rates[0] <= 0 or rates[0] < FULL_RATE * max(rates):
        return None
    curve = objective_curve(record)
    losses, norms = list(curve.values), record.values(GRAD_NORM)
    peak, norm_peak = _loss_peak(losses), _norm_peak(norms)
    start = f"the learning rate starts at {rates[0]:.3g} without a warm-up"
    if peak is not None:
        text = f"{start}, and the loss rose from {curve.show(losses[0])} to {curve.show(peak)} before it fell"
        weight = 0.6 if norm_peak is None else 0.7
        return Evidence("missing_warm_up", weight, curve.ticks[0], text, level=peak, bound=losses[0])
    if norm_peak is not None:
        text = f"{start}, and the gradient's norm rose from {norms[0]:.3g} to {norm_peak:.3g} before it fell"
        return Evidence("missing_warm_up", 0.4, record.ticks[0], text, metric=GRAD_NORM, remedy=IF_LOSS_SUFFERS)
    return None


def _loss_peak(losses: Sequence[float]) -> float | None:
    """Return the level to which the loss rose in the first steps, if it fell below its start later."""
    if len(losses) < MIN_READINGS:
        return None
    first, early, later = losses[0], *_split(losses)
    usual = median(later)
    noise = noise_of(later) * max(1.0, abs(first) / max(abs(usual), 1e-12))  # the noise of most losses is relative
    peak = _lasting_peak(early)
    is_harmed = peak - first >= max(MIN_RISE * abs(first), NOISES * noise)
    return peak if is_harmed and usual < first else None


def _norm_peak(norms: Sequence[float]) -> float | None:
    """Return the level to which the gradient's norm rose in the first steps, if that is far above all others."""
    if len(norms) < MIN_READINGS:
        return None
    early, later = _split(norms)
    peak = _lasting_peak(early)
    return peak if peak >= MIN_NORM_RATIO * max(norms[0], median(later)) > 0 else None


def _split(values: Sequence[float]) -> tuple[Sequence[float], Sequence[float]]:
    count = min(MAX_EARLY, round(EARLY_SHARE * len(values)))
    return values[:count], values[count:]


def _lasting_peak(values: Sequence[float]) -> float:
    """Return the highest level of two consecutive values. A single one may be due to a bad batch."""
    return max(map(min, pairwise(values)))
