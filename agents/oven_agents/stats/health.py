"""The state of one signal of a run: better, steady, or worse than just before. Reviews of ballots are based on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Literal

from oven_agents.sdk.window import Window
from oven_agents.stats import symptoms
from oven_agents.stats.level_shift import Shift, shift_of_halves, shift_of_newest
from oven_agents.stats.objective import apply_sign, held_out_metric, objective, readings
from oven_agents.stats.optimizer_gauges import GRAD_NORM
from oven_agents.stats.robust_statistics import bending_noise

RECENT_TICKS = 24
"""Number of newest ticks whose halves are compared. More would compare other phases of the training."""
MIN_TICKS = 6
"""Minimum number of ticks for a comparison. With fewer, the spread of the halves is unknown."""
SIGMAS = 3.0
"""Standard errors beyond which a change counts. Independent noise exceeds them once in 45 comparisons of 6 values,
and once in 270 of 24."""
MIN_READINGS = 2
"""Minimum number of held-out readings for a comparison."""
MIN_RELATIVE_CHANGE = 0.02
"""Minimum change of held-out readings, as a share of the earlier one. With few readings, their noise is unknown."""
SPIKE_FACTOR = 4.0
"""Multiple of its median beyond which the newest gradient norm counts as worse."""
COLLAPSED_SHARE = 0.5
"""Share of its earlier level below which an entropy counts as worse."""
ENTROPY = "entropy"


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a signal, in words and as one of three classes."""

    state: Literal["better", "steady", "worse"]
    text: str
    """Part of a sentence, with figures."""
    metrics: tuple[str, ...]
    """The metrics that were read."""


def objective_health(window: Window) -> Health | None:
    """Return the state of the run's objective, which is its reward or its loss, or None without enough values."""
    metric = objective(window.run)
    values = [apply_sign(metric, value) for _, value in window.surviving_series(metric.name, last=RECENT_TICKS)]
    if values and not all(map(math.isfinite, values)):
        return Health("worse", f"{metric.name} is not finite", (metric.name,))
    if len(values) < MIN_TICKS:
        return None
    shift = shift_of_halves(values)
    old, new = (apply_sign(metric, fmean(half)) for half in (shift.before, shift.now))
    return Health(_state(shift), f"{metric.name} went from {old:.3g} to {new:.3g}", (metric.name,))


def held_out_health(window: Window) -> Health | None:
    """Return the state of the newest held-out reading, compared with the best one before it, or None with too few."""
    metric = held_out_metric(window.run)
    points = readings(window)
    if metric is None or len(points) < MIN_READINGS or not all(math.isfinite(value) for _, value in points):
        return None
    values = [value for _, value in points]
    best, newest = max(values[:-1]), values[-1]
    margin = max(SIGMAS * bending_noise(values), MIN_RELATIVE_CHANGE * abs(best))
    state: Literal["better", "steady", "worse"] = "steady"
    if abs(newest - best) > margin:
        state = "better" if newest > best else "worse"
    old, new = apply_sign(metric, best), apply_sign(metric, newest)
    return Health(state, f"{metric.name} is {new:.3g}, and its best earlier reading is {old:.3g}", (metric.name,))


def gradient_health(window: Window) -> Health | None:
    """Return whether the newest gradient norms are far above their usual level, or None without enough values."""
    norms = [norm for _, norm in window.surviving_series(GRAD_NORM, last=RECENT_TICKS)]
    if norms and not all(map(math.isfinite, norms)):
        return Health("worse", f"{GRAD_NORM} is not finite", (GRAD_NORM,))
    if len(norms) < MIN_TICKS:
        return None
    shift = shift_of_newest(norms, 3)
    usual, newest = median(shift.before), max(shift.now)
    is_spike = newest > SPIKE_FACTOR * usual
    text = f"the largest of the newest {len(shift.now)} gradient norms is {newest:.3g}, and the usual one {usual:.3g}"
    return Health("worse" if is_spike else "steady", text, (GRAD_NORM,))


def policy_health(window: Window) -> Health | None:
    """Return the state of the policy's entropy, or None without enough values."""
    entropies = symptoms.recent_values(window, ENTROPY, RECENT_TICKS)
    if len(entropies) < MIN_TICKS:
        return None
    shift = shift_of_halves(entropies)
    old, new = median(shift.before), median(shift.now)
    is_collapsed = 0 <= new < COLLAPSED_SHARE * old
    return Health("worse" if is_collapsed else "steady", f"entropy went from {old:.3g} to {new:.3g}", (ENTROPY,))


def anchor_health(window: Window) -> Health | None:
    """Return the state of the policy's KL to its reference, or None without enough values."""
    values = symptoms.recent_values(window, symptoms.KL, RECENT_TICKS)
    if len(values) < MIN_TICKS:
        return None
    sighting = symptoms.kl_sighting(window)
    text = sighting.why if sighting else f"the KL to the reference is {median(values[-symptoms.LEVEL_VALUES :]):.3g}"
    return Health("worse" if sighting else "steady", text, (symptoms.KL,))


def _state(shift: Shift) -> Literal["better", "steady", "worse"]:
    """Classify a shift of values that are better if they are higher."""
    spread = max(_spread(shift.before), _spread(shift.now), 1e-12)
    errors = shift.mean_difference / shift.standard_error(spread)
    return "better" if errors > SIGMAS else "worse" if errors < -SIGMAS else "steady"


def _spread(values: Sequence[float]) -> float:
    return stdev(values) if len(values) > 1 else 0.0
