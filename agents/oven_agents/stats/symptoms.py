"""Symptoms of a policy that is trained by its own completions, each a pure function of the series that show it.

Each finds what is so at the newest value, with a margin between where it begins and where it ends
(oven_agents.stats.hysteresis). Bounds are relative to the run's own start where a gauge has no scale of its own: that
is the oldest of what a window holds, 512 ticks at most. How often they are right and wrong on simulated runs:
`oven-controller bench alerts`, docs/benchmarks.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final

from oven_agents.sdk.window import Window
from oven_agents.stats.hysteresis import NOW, below, level, stands
from oven_agents.stats.objective import objective
from oven_controller.protocol.alerts import Alert

CONFIDENCE, INFORMATIVENESS, LENGTH, KL = "confidence/std", "informativeness/mean", "completions/mean_length", "kl"
ADVANTAGE = "advantage/std"
ECE, NULL, NULL99 = "calibration/ece", "calibration/ece_null", "calibration/ece_null_99"

START: Final = 10
"""First values whose median is a gauge's own start."""
CONSTANT: Final = 0.1
"""Standard deviation of stated confidences, of a scale of 0 to 1, below which they say next to nothing: nine of ten
lie within a third of the scale. Confidences that are spread evenly have 0.29."""
FALLEN: Final = 0.4
"""Share of its own start below which the spread of confidences has fallen: batches of 64 know a standard deviation to
9 %, and a policy that learns calibration may narrow a spread to half."""
CERTAIN: Final = 0.9
"""Mean objective, or informativeness, above which little spread is right: nearly everything is right, and says so."""
ALIKE: Final = 0.02
"""Standard deviation of advantages, in the reward's unit, below which no completion is told from another. Rewards
between 0 and 1 have 0.2 and more while there is something to learn; a gradient is smaller by as much."""
SHRUNK: Final = 0.6
"""Share of their own start below which answers have shrunk. Means of a batch vary by 1 to 5 %, and a policy may learn
to be a quarter shorter for good reasons."""
RUNAWAY: Final = 3.0
"""Factor by which the KL grows within BACK values when it runs away. A policy that learns moves off like the square root
of the steps or slower: 1.4 times from 15 steps to 30."""
BACK: Final = 15
"""Values over which that growth is measured."""
KL_LEAST: Final = 0.25
"""Nats per token below which growth of the KL is how training begins: from nothing, each value is many times the one
before."""
KL_ENDS: Final = 1.5
"""Factor of growth below which it does not run any more."""
TWICE: Final = 8
"""Values between the two readings that have to lie beyond the null: half of the newest 1,000 answers are others by then
where a step has 64."""
ECE_LEAST: Final = 0.02
"""Calibration error beyond its null's 99 % that matters: two points of a hundred. Policies that are trained to be
calibrated keep about as much."""
NULL_FACTOR: Final = 3.3
"""99 % of the null over its mean where only the mean is published: 3.2 where all say the same (the half-normal law's
2.58 over 0.80), 1.5 where confidences fill ten bins."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A symptom that is there now: `value` is beyond `expected`."""

    symptom: str
    metric: str
    value: float
    expected: float
    why: str


def confidence_collapse(deviations: Sequence[float], informativeness: Sequence[float] = ()) -> Sighting | None:
    """Stated confidences that are all alike, or far more so than at the start."""
    if len(deviations) < NOW or _solved(informativeness):
        return None
    start = median(deviations[:START])
    bound = max(CONSTANT, FALLEN * start)
    if not below(deviations, bound, 1.3 * bound):
        return None
    now = median(deviations[-NOW:])
    why = f"confidences have a standard deviation of {now:.3g} ({start:.3g} at the start): they tell nothing apart"
    return Sighting("confidence_collapse", CONFIDENCE, now, bound, why)


def advantages_alike(
    deviations: Sequence[float], objectives: Sequence[float] = (), metric: str = ADVANTAGE
) -> Sighting | None:
    """Completions of a group that all get the same reward, so that no gradient is left."""
    if len(deviations) < NOW or _solved(objectives) or not below(deviations, ALIKE, 2 * ALIKE):
        return None
    now = median(deviations[-NOW:])
    why = f"advantages have a standard deviation of {now:.3g}: rewards tell no completion from another"
    return Sighting("zero_advantage_groups", metric, now, ALIKE, why)


def answers_shrink(lengths: Sequence[float]) -> Sighting | None:
    """Completions far shorter than at the start."""
    if len(lengths) < START:
        return None
    start = median(lengths[:START])
    if not below(lengths, SHRUNK * start, 1.25 * SHRUNK * start):
        return None
    now = median(lengths[-NOW:])
    return Sighting(
        "length_shrinks", LENGTH, now, SHRUNK * start, f"answers shrank from {start:.3g} to {now:.3g} tokens"
    )


def kl_runaway(values: Sequence[float]) -> Sighting | None:
    """A KL to the reference that grows ever faster."""

    def bounds(place: int, factor: float) -> tuple[float, float] | None:
        now, before = level(values, place), level(values, place - BACK)
        return None if now is None or before is None else (now, max(KL_LEAST, factor * before))

    def begins(place: int) -> bool:
        return (found := bounds(place, RUNAWAY)) is not None and found[0] > found[1]

    def ends(place: int) -> bool:
        return (found := bounds(place, KL_ENDS)) is not None and found[0] < found[1]

    if not stands(len(values), begins, ends):
        return None
    now, bound = bounds(len(values) - 1, RUNAWAY) or (values[-1], KL_LEAST)
    before = level(values, len(values) - 1 - BACK) or 0.0
    why = f"the KL to the reference grew from {before:.3g} to {now:.3g} nats per token within {BACK} ticks"
    return Sighting("kl_runaway", KL, now, min(bound, now), why)


def calibration_drift(readings: Sequence[tuple[int, float, float]]) -> Sighting | None:
    """A calibration error beyond what chance alone gives a perfect forecaster, twice. `readings`: (tick, error, the
    null's 99 %)."""

    def beyond(place: int, least: float) -> bool:
        return place >= 0 and readings[place][1] > readings[place][2] + least

    if not stands(
        len(readings),
        lambda place: beyond(place, ECE_LEAST) and beyond(place - TWICE, ECE_LEAST),
        lambda place: not beyond(place, 0.0),
    ):
        return None
    _, error, null = readings[-1]
    why = f"the calibration error is {error:.3g} at two readings; chance alone exceeds {null:.3g} once in a hundred"
    return Sighting("calibration_drift", ECE, error, null, why)


def sighted(window: Window, found: Sequence[Sighting]) -> list[Alert]:
    """The same as alerts of an agent."""
    return [window.alert(one.symptom, one.metric, value=one.value, expected=one.expected, why=one.why) for one in found]


def series(window: Window, metric: str) -> list[float]:
    """The metric's values on the way to the present weights, NaN left out."""
    return [value for _, value in window.surviving_series(metric) if not math.isnan(value)]


def calibration_readings(window: Window) -> list[tuple[int, float, float]]:
    """(tick, calibration error, its null's 99 %) of the ticks that have both. Where that is not published, from the
    null's mean."""
    published = {spec.name for spec in window.run.metrics}
    name, factor = (NULL99, 1.0) if NULL99 in published else (NULL, NULL_FACTOR)
    nulls = dict(window.surviving_series(name))
    found = [(tick, value, factor * nulls[tick]) for tick, value in window.surviving_series(ECE) if tick in nulls]
    return [reading for reading in found if all(map(math.isfinite, reading))]


def spread_symptoms(window: Window) -> list[Sighting]:
    """What has lost its spread: stated confidences, advantages."""
    published = {spec.name for spec in window.run.metrics}
    found = []
    if CONFIDENCE in published:
        found.append(confidence_collapse(series(window, CONFIDENCE), series(window, INFORMATIVENESS)))
    if ADVANTAGE in published:
        found.append(advantages_alike(series(window, ADVANTAGE), series(window, objective(window.run).name)))
    return [one for one in found if one is not None]


def movement_symptoms(window: Window) -> list[Sighting]:
    """How the policy moves off: answers that shrink, a KL that runs away."""
    published = {spec.name for spec in window.run.metrics}
    found = []
    if LENGTH in published:
        found.append(answers_shrink(series(window, LENGTH)))
    if KL in published:
        found.append(kl_runaway(series(window, KL)))
    return [one for one in found if one is not None]


def _solved(values: Sequence[float]) -> bool:
    return bool(values) and fmean(values[-NOW:]) > CERTAIN
