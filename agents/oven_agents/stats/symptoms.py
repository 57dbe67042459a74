"""Detects symptoms of trouble in a policy trained on its own completions. Each is a pure function of its series.

Each symptom starts and ends at different thresholds (hysteresis). If a gauge has no natural
scale, bounds are relative to its first values in the window of 512 ticks. docs/benchmarks.md has the accuracy on
simulated runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import fmean, median
from typing import Final

from oven_agents.sdk.window import Window
from oven_agents.stats.objective import objective
from oven_core.protocol.alerts import Alert

CONFIDENCE, INFORMATIVENESS, LENGTH, KL = "confidence/std", "informativeness/mean", "completions/mean_length", "kl"
ADVANTAGE = "advantage/std"
SPREAD, EQUAL_GROUPS = "reward_std", "frac_reward_zero_std"
ECE, NULL, NULL99 = "calibration/ece", "calibration/ece_null", "calibration/ece_null_99"

RECENT: Final = 40
"""Newest values that are searched for a symptom; one that stays between its bounds for longer has ended. The KL needs
25, and noise does not keep the other 15 between its bounds."""
START: Final = 10
"""First values whose median is a gauge's start."""
CONSTANT: Final = 0.1
"""Standard deviation of stated confidences below which they say next to nothing. Evenly spread ones have 0.29."""
FALLEN: Final = 0.4
"""Share of its start below which the spread of confidences has fallen. Batches of 64 give a standard deviation to 9 %,
and a policy that learns calibration may halve it."""
CERTAIN: Final = 0.9
"""Mean objective, or informativeness, above which little spread is right: nearly everything is right."""
ALIKE: Final = 0.02
"""Standard deviation of advantages, in the reward's unit, below which all completions look alike. Rewards between 0 and
1 have 0.2 and more while there is something to learn."""
EQUAL: Final = 15
"""Ticks in a row without spread in any group of completions. By then it is not an accident of small groups."""
SHRUNK: Final = 0.6
"""Share of their start below which answers have shrunk. Batch means vary by 1 to 5 %, and a policy may learn to be a
quarter shorter for good reasons."""
RUNAWAY: Final = 3.0
"""Growth of the KL within two dozen values when it runs away. A learning policy moves like the square root of the steps
or slower. In a small GRPO run one step's KL varies by 47 %, a median of five by 26 %."""
BACK: Final = 10
"""Values between the present level of the KL and the end of its reference."""
BEFORE: Final = 10
"""Values whose median is the KL's reference."""
KL_LEAST: Final = 0.6
"""Nats per token below which the KL only grows as at the start of training, where each value is many times the one
before. A small GRPO run at β 0.05 stays at 0.2 to 0.3 (docs/benchmarks.md)."""
KL_ENDS: Final = 1.5
"""Growth below which the KL no longer runs away."""
TWICE: Final = 5
"""Values between the two readings beyond the null. With 64 answers per step, a third of the newest 1,000 are new."""
ECE_LEAST: Final = 0.03
"""Calibration error beyond the null's 99 % that matters. Harmless wandering of up to three points stays below it; with
0.02, 2 of 100 simulated healthy runs had an alert."""
NULL_FACTOR: Final = 3.3
"""99 % of the null divided by its mean, if only the mean is published: 3.2 if all confidences are equal (2.58 / 0.80 of
the half-normal law), 1.5 if they fill ten bins."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A present symptom: `value` is beyond `expected`."""

    symptom: str
    metric: str
    value: float
    expected: float
    why: str


def confidence_collapse(
    deviations: Sequence[float], start: float | None = None, informativeness: Sequence[float] = ()
) -> Sighting | None:
    """Report stated confidences that are all alike, or far more so than at the start."""
    if len(deviations) < NOW or _solved(informativeness):
        return None
    bound = max(CONSTANT, FALLEN * (start or 0.0))
    if not below(deviations, bound, 1.3 * bound):
        return None
    now = median(deviations[-NOW:])
    before = f" ({start:.3g} at the start)" if start is not None else ""
    why = f"confidences have a standard deviation of {now:.3g}{before}: they tell nothing apart"
    return Sighting("confidence_collapse", CONFIDENCE, now, bound, why)


def advantages_alike(
    deviations: Sequence[float], objectives: Sequence[float] = (), metric: str = ADVANTAGE
) -> Sighting | None:
    """Report groups whose completions all get the same reward, so that no gradient is left."""
    if len(deviations) < NOW or _solved(objectives) or not below(deviations, ALIKE, 2 * ALIKE):
        return None
    now = median(deviations[-NOW:])
    why = f"advantages have a standard deviation of {now:.3g}: rewards tell no completion from another"
    return Sighting("zero_advantage_groups", metric, now, ALIKE, why)


def equal_rewards(shares: Sequence[float], rewards: Sequence[float] = ()) -> Sighting | None:
    """Report rewards that were equal within every group for EQUAL ticks. `shares`: of groups with equal rewards. Near
    the ceiling that is success, unless the reward never varies."""
    if _solved(rewards) and max(rewards) > min(rewards):
        return None
    if not stands(
        len(shares),
        lambda index: index + 1 >= EQUAL and min(shares[index + 1 - EQUAL : index + 1]) >= 1,
        lambda index: (now := level(shares, index)) is not None and now < 1,
    ):
        return None
    levels = f" at {rewards[-1]:.3g}" if rewards else ""
    why = (
        f"nothing is learnt: all rewards were equal within their groups for {EQUAL} ticks{levels}, so no advantage "
        "differs from 0. Look at what the reward function returns for a few completions, at whether they are cut "
        "before their answer (completions/clipped_ratio), and at whether prompts are too easy or too hard"
    )
    return Sighting("zero_advantage_groups", EQUAL_GROUPS, 1.0, 1.0, why)


def answers_shrink(lengths: Sequence[float], start: float | None) -> Sighting | None:
    """Report completions far shorter than at the start."""
    if start is None or not below(lengths, SHRUNK * start, 1.25 * SHRUNK * start):
        return None
    now = median(lengths[-NOW:])
    return Sighting(
        "length_shrinks", LENGTH, now, SHRUNK * start, f"answers shrank from {start:.3g} to {now:.3g} tokens"
    )


def kl_runaway(values: Sequence[float]) -> Sighting | None:
    """Report a KL to the reference that grows ever faster."""

    def bounds(index: int, factor: float) -> tuple[float, float] | None:
        now, end = level(values, index), index + 1 - BACK
        if now is None or end < BEFORE:
            return None
        return now, max(KL_LEAST, factor * median(values[end - BEFORE : end]))

    def begins(index: int) -> bool:
        return (pair := bounds(index, RUNAWAY)) is not None and pair[0] > pair[1]

    def ends(index: int) -> bool:
        return (pair := bounds(index, KL_ENDS)) is not None and pair[0] < pair[1]

    if not stands(len(values), begins, ends):
        return None
    now, bound = bounds(len(values) - 1, RUNAWAY) or (values[-1], KL_LEAST)
    why = f"the KL to the reference is {now:.3g} nats per token, and was {bound / RUNAWAY:.3g} or less a while before"
    return Sighting("kl_runaway", KL, now, min(bound, now), why)


def calibration_drift(readings: Sequence[tuple[int, float, float]]) -> Sighting | None:
    """Report a calibration error that exceeds a perfect forecaster's by more than chance, twice. `readings`: (tick,
    error, the null's 99 %)."""

    def beyond(index: int, least: float) -> bool:
        return index >= 0 and readings[index][1] > readings[index][2] + least

    if not stands(
        len(readings),
        lambda index: beyond(index, ECE_LEAST) and beyond(index - TWICE, ECE_LEAST),
        lambda index: not beyond(index, 0.0),
    ):
        return None
    _, error, null = readings[-1]
    why = f"the calibration error is {error:.3g} at two readings; chance alone exceeds {null:.3g} once in a hundred"
    return Sighting("calibration_drift", ECE, error, null, why)


def sighted(window: Window, *sightings: Sighting | None) -> list[Alert]:
    """Return the symptoms as an agent's alerts."""
    return [
        window.alert(
            sighting.symptom, sighting.metric, value=sighting.value, expected=sighting.expected, why=sighting.why
        )
        for sighting in sightings
        if sighting is not None
    ]


def recent(window: Window, metric: str, last: int = RECENT) -> list[float]:
    """Return the metric's newest values on the way to the present weights, without NaN."""
    return [value for _, value in window.surviving_series(metric, last=last) if not math.isnan(value)]


def start(window: Window, metric: str) -> float | None:
    """Return the median of the window's first START finite values; None if there are fewer."""
    observed = (observation.metrics.get(metric) for observation in window.observations)
    first = list(islice((value for value in observed if value is not None and math.isfinite(value)), START))
    return median(first) if len(first) == START else None


def calibration_readings(window: Window) -> list[tuple[int, float, float]]:
    """Return (tick, calibration error, its null's 99 %) of the newest ticks with both; from the null's mean if only
    that is published."""
    published = {spec.name for spec in window.run.metrics}
    name, factor = (NULL99, 1.0) if NULL99 in published else (NULL, NULL_FACTOR)
    nulls = dict(window.surviving_series(name, last=RECENT))
    points = window.surviving_series(ECE, last=RECENT)
    readings = [(tick, error, factor * nulls[tick]) for tick, error in points if tick in nulls]
    return [reading for reading in readings if all(map(math.isfinite, reading))]


def confidence_sighting(window: Window) -> Sighting | None:
    if not _publishes(window, CONFIDENCE):
        return None
    solved = recent(window, INFORMATIVENESS, NOW)
    return confidence_collapse(recent(window, CONFIDENCE), start(window, CONFIDENCE), solved)


def advantage_sighting(window: Window) -> Sighting | None:
    if not _publishes(window, ADVANTAGE):
        return None
    return advantages_alike(recent(window, ADVANTAGE), recent(window, objective(window.run).name, NOW))


def equal_rewards_sighting(window: Window) -> Sighting | None:
    """Without the share of equal groups, a mean deviation of 0 within groups says the same."""
    shares = recent(window, EQUAL_GROUPS) or [float(spread == 0) for spread in recent(window, SPREAD)]
    return equal_rewards(shares, recent(window, "reward"))


def length_sighting(window: Window) -> Sighting | None:
    return answers_shrink(recent(window, LENGTH), start(window, LENGTH)) if _publishes(window, LENGTH) else None


def kl_sighting(window: Window) -> Sighting | None:
    return kl_runaway(recent(window, KL)) if _publishes(window, KL) else None


def _publishes(window: Window, metric: str) -> bool:
    return any(spec.name == metric for spec in window.run.metrics)


def _solved(values: Sequence[float]) -> bool:
    return bool(values) and fmean(values[-NOW:]) > CERTAIN


NOW: Final = 5
"""Newest values whose median is a gauge's level: two outliers cannot change it, and it lags by three ticks."""


def stands(count: int, begins: Callable[[int], bool], ends: Callable[[int], bool]) -> bool:
    """Return whether the condition holds at the last of `count` places, by the last place at which it began or ended.
    False if neither ever happened."""
    for index in range(count - 1, -1, -1):
        if begins(index):
            return True
        if ends(index):
            return False
    return False


def level(values: Sequence[float], index: int) -> float | None:
    """Return the median of the NOW values up to `index`, included; None if there are fewer."""
    return median(values[index + 1 - NOW : index + 1]) if index + 1 >= NOW else None


def below(values: Sequence[float], begins: float, ends: float) -> bool:
    """Return whether the level fell below `begins` and has not risen to `ends` since."""

    def is_below(index: int, bound: float) -> bool:
        now = level(values, index)
        return now is not None and now < bound

    return stands(len(values), lambda index: is_below(index, begins), lambda index: not is_below(index, ends))
