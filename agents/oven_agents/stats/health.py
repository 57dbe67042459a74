"""The state of one signal of a run: better, steady, or worse than just before. Reviews of ballots are based on it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Literal, TypeAlias

from oven_agents.sdk.window import Window
from oven_agents.stats import symptoms
from oven_agents.stats.level_shift import Shift, shift_of_halves, shift_of_newest
from oven_agents.stats.objective import apply_sign, held_out_metric, objective, readings
from oven_agents.stats.optimizer_gauges import GRAD_COSINE, GRAD_NORM, UPDATE_RATIO, growth_of
from oven_agents.stats.robust_statistics import bending_noise

RECENT_TICKS = 24
"""Number of newest ticks whose halves are compared. More would compare other phases of the training."""
MIN_TICKS = 6
"""Minimum number of ticks for a comparison. With fewer, the spread of the halves is unknown."""
NEWEST_TICKS = 3
"""Number of newest ticks that show a jump if all of them are worse than all others of RECENT_TICKS. By chance, this
happens in one of 2,024 comparisons."""
SIGMAS = 3.0
"""Standard errors beyond which a change counts. Independent noise exceeds them once in 45 comparisons of 6 values,
and once in 270 of 24."""
MIN_READINGS = 2
"""Minimum number of held-out readings for a comparison."""
MIN_RELATIVE_CHANGE = 0.02
"""Minimum change of held-out readings, as a share of the earlier one. With few readings, their noise is unknown."""
NEWEST_NORMS = 8
"""Number of newest gradient norms in which a spike counts. The loss may rise only some ticks after the spike."""
SPIKE_FACTOR = 4.0
"""Multiple of its median beyond which a gradient norm counts as a spike."""
STEP_GROWTH = 1.8
"""Minimum growth of the update's length that counts as worse. Less is often noise."""
OPPOSED_COSINE = -0.2
"""Median cosine between a gradient and the running mean below which successive steps cancel each other."""
COLLAPSED_SHARE = 0.5
"""Share of its earlier level below which an entropy counts as worse."""
ENTROPY = "entropy"

State: TypeAlias = Literal["better", "steady", "worse"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of a signal, in words and as one of three classes."""

    state: State
    text: str
    """Part of a sentence, with figures."""
    metrics: tuple[str, ...]
    """The metrics that were read."""


def objective_health(window: Window) -> Health | None:
    """Return the state of the run's objective, which is its reward or its loss, or None without enough values. A reward
    also gets worse if completions of one prompt no longer differ in it, because the policy then learns nothing."""
    metric = objective(window.run)
    values = [apply_sign(metric, value) for _, value in window.surviving_series(metric.name, last=RECENT_TICKS)]
    if values and not all(map(math.isfinite, values)):
        return Health("worse", f"{metric.name} is not finite", (metric.name,))
    if len(values) < MIN_TICKS:
        return None
    if metric.name == "reward" and (sighting := symptoms.equal_rewards_sighting(window)):
        return Health("worse", sighting.why, (sighting.metric,))
    newest = shift_of_newest(values, NEWEST_TICKS)
    is_jump = len(values) == RECENT_TICKS and max(newest.now) < min(newest.before)
    shift = newest if is_jump else shift_of_halves(values)
    old, new = (apply_sign(metric, fmean(part)) for part in (shift.before, shift.now))
    return Health(
        "worse" if is_jump else _state(shift), f"{metric.name} went from {old:.3g} to {new:.3g}", (metric.name,)
    )


def held_out_health(window: Window) -> Health | None:
    """Return the state of the newest held-out reading, compared with the best one before it, or None with too few. A
    reading below the best one is not worse if it is above the one just before it by more than the noise."""
    metric = held_out_metric(window.run)
    points = readings(window)
    if metric is None or len(points) < MIN_READINGS or not all(math.isfinite(value) for _, value in points):
        return None
    values = [value for _, value in points]
    best, newest = max(values[:-1]), values[-1]
    margin = max(SIGMAS * bending_noise(values), MIN_RELATIVE_CHANGE * abs(best))
    state: State = "steady"
    if newest > best + margin:
        state = "better"
    elif newest < best - margin and newest <= values[-2] + margin:
        state = "worse"
    old, new = apply_sign(metric, best), apply_sign(metric, newest)
    return Health(state, f"{metric.name} is {new:.3g}, and its best earlier reading is {old:.3g}", (metric.name,))


def gradient_health(window: Window) -> Health | None:
    """Return the state of gradients and steps, or None without enough values. They get worse if a norm is far above the
    usual one, if steps have become longer, or if successive steps cancel each other."""
    norms = [norm for _, norm in window.surviving_series(GRAD_NORM, last=RECENT_TICKS)]
    if norms and not math.isfinite(norms[-1]):
        return Health("worse", f"{GRAD_NORM} is not finite", (GRAD_NORM,))
    norms = list(filter(math.isfinite, norms))  # mixed precision skips steps with infinite norms
    if len(norms) < MIN_TICKS:
        return None
    shift = shift_of_newest(norms, min(NEWEST_NORMS, len(norms) // 2))
    usual, largest = median(shift.before), max(shift.now)
    if largest > SPIKE_FACTOR * usual:
        return Health("worse", f"a gradient norm is {largest:.3g}, and the usual one {usual:.3g}", (GRAD_NORM,))
    growth = growth_of(window, UPDATE_RATIO)
    if growth > STEP_GROWTH:
        return Health("worse", f"steps have become {growth:.2g} times as long", (UPDATE_RATIO,))
    cosines = window.series(GRAD_COSINE, last=NEWEST_NORMS)
    if len(cosines) == NEWEST_NORMS and median(cosines) < OPPOSED_COSINE:
        text = f"successive steps cancel each other (cosine {median(cosines):.2f})"
        return Health("worse", text, (GRAD_COSINE,))
    return Health(
        "steady", f"the newest gradient norms are at most {largest:.3g}, and usual ones are {usual:.3g}", (GRAD_NORM,)
    )


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
    values = symptoms.reference_kls(window)
    if len(values) < MIN_TICKS:
        return None
    sighting = symptoms.detect_kl_runaway(values)
    text = sighting.why if sighting else f"the KL to the reference is {median(values[-symptoms.LEVEL_VALUES :]):.3g}"
    return Health("worse" if sighting else "steady", text, (symptoms.KL,))


def _state(shift: Shift) -> State:
    """Classify a shift of values that are better if they are higher."""
    spread = max(stdev(shift.before), stdev(shift.now), 1e-12)
    errors = shift.mean_difference / shift.standard_error(spread)
    return "better" if errors > SIGMAS else "worse" if errors < -SIGMAS else "steady"
