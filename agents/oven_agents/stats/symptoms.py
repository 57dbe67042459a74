"""Detects symptoms of trouble in a policy that is trained on its own completions.

Each detector is a pure function of its series. A symptom starts and ends at different thresholds (hysteresis). If a
gauge has no natural scale, its thresholds are relative to its first values in the window of 512 ticks.
docs/benchmarks.md has the accuracy on simulated runs.
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

LEVEL_VALUES: Final = 5
"""Number of values whose median is a gauge's level. Two outliers cannot change it, and it lags by three ticks."""
SEARCH_LENGTH: Final = 40
"""Number of newest values to search for a symptom's start. A symptom that stays between its two thresholds for longer
counts as ended."""
START_VALUES: Final = 10
"""Number of first values whose median is the start level of a gauge."""
CONSTANT_DEVIATION: Final = 0.1
"""Standard deviation below which stated confidences are useless. Evenly spread confidences have 0.29."""
COLLAPSED_SHARE: Final = 0.4
"""Share of its start level below which the spread of confidences has collapsed. A batch of 64 determines a standard
deviation to within 9 %, and a policy that learns calibration may halve it."""
SOLVED_LEVEL: Final = 0.9
"""Mean objective, or informativeness, above which little spread is expected, because nearly all answers are correct."""
EQUAL_DEVIATION: Final = 0.02
"""Standard deviation of advantages, in the reward's unit, below which all completions look alike. With rewards between
0 and 1, it is at least 0.2 while there is something to learn."""
EQUAL_TICKS: Final = 15
"""Number of consecutive ticks with equal rewards in every group that cannot be chance, even in small groups."""
SHRUNK_SHARE: Final = 0.6
"""Share of their start length below which answers have shrunk. Batch means vary by 1 to 5 %, and a policy may shorten
its answers by a quarter for good reasons."""
RUNAWAY_GROWTH: Final = 3.0
"""Growth of the KL within two dozen values at which it runs away. The KL of a learning policy grows with the square
root of the steps or more slowly. In a small GRPO run, one step's KL varies by 47 %, and a median of five by 26 %."""
REFERENCE_LAG: Final = 10
"""Number of values between the end of the KL's reference and its current level."""
REFERENCE_LENGTH: Final = 10
"""Number of values whose median is the KL's reference."""
MIN_KL: Final = 0.6
"""Minimum KL of a runaway, in nats per token. Below it, the policy may be moving towards the task."""
KL_END_GROWTH: Final = 1.5
"""Multiple of the KL before a runaway. The runaway has ended once the KL is below it, or below MIN_KL."""
READING_DISTANCE: Final = 5
"""Number of values between two readings that must both exceed the null distribution. A reading covers 1,000 answers.
With 64 answers per step, a third of them are new by then."""
MIN_EXCESS_ECE: Final = 0.03
"""Minimum excess of the calibration error over the null's 99 % quantile. A harmless drift of up to three points stays
below it. With 0.02, 2 of 100 simulated healthy runs had an alert."""
NULL_FACTOR: Final = 3.3
"""The null's 99 % quantile divided by its mean, for runs that only publish the mean. It is 3.2 if all confidences are
equal (2.58 / 0.80 of the half-normal distribution), and 1.5 if they fill ten bins."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A current symptom, with a metric whose `value` is beyond the `expected` bound."""

    symptom: str
    metric: str
    value: float
    expected: float
    why: str


def confidence_collapse(
    deviations: Sequence[float], start: float | None = None, informativeness: Sequence[float] = ()
) -> Sighting | None:
    """Report stated confidences that are almost constant, or that vary far less than at the start."""
    if len(deviations) < LEVEL_VALUES or _is_solved(informativeness):
        return None
    bound = max(CONSTANT_DEVIATION, COLLAPSED_SHARE * (start or 0.0))
    if not is_below(deviations, bound, 1.3 * bound):
        return None
    now = median(deviations[-LEVEL_VALUES:])
    before = f" ({start:.3g} at the start)" if start is not None else ""
    why = (
        f"confidences have a standard deviation of {now:.3g}{before}: they do not distinguish right from wrong answers"
    )
    return Sighting("confidence_collapse", CONFIDENCE, now, bound, why)


def equal_advantages(
    deviations: Sequence[float], objectives: Sequence[float] = (), metric: str = ADVANTAGE
) -> Sighting | None:
    """Report groups whose completions all get the same reward, so that no gradient is left."""
    if len(deviations) < LEVEL_VALUES or _is_solved(objectives):
        return None
    if not is_below(deviations, EQUAL_DEVIATION, 2 * EQUAL_DEVIATION):
        return None
    now = median(deviations[-LEVEL_VALUES:])
    why = f"advantages have a standard deviation of {now:.3g}: the rewards do not distinguish completions"
    return Sighting("zero_advantage_groups", metric, now, EQUAL_DEVIATION, why)


def equal_rewards(shares: Sequence[float], rewards: Sequence[float] = ()) -> Sighting | None:
    """Report rewards that were equal within every group for EQUAL_TICKS ticks. `shares` are the shares of groups with
    equal rewards. Near the ceiling this is success, unless the reward never varies."""
    if _is_solved(rewards) and max(rewards) > min(rewards):
        return None
    if not is_active(
        len(shares),
        lambda index: index + 1 >= EQUAL_TICKS and min(shares[index + 1 - EQUAL_TICKS : index + 1]) >= 1,
        lambda index: _is_level_below(shares, index, 1.0),
    ):
        return None
    current = f" at {rewards[-1]:.3g}" if rewards else ""
    why = (
        f"the policy is not learning: all rewards were equal within their groups for {EQUAL_TICKS} ticks{current}, so "
        "all advantages are 0. Check what the reward function returns for a few completions, whether completions are "
        "cut off before their answer (completions/clipped_ratio), and whether prompts are too easy or too hard"
    )
    return Sighting("zero_advantage_groups", EQUAL_GROUPS, 1.0, 1.0, why)


def shrinking_answers(lengths: Sequence[float], start: float | None) -> Sighting | None:
    """Report completions far shorter than at the start."""
    if start is None or not is_below(lengths, SHRUNK_SHARE * start, 1.25 * SHRUNK_SHARE * start):
        return None
    now = median(lengths[-LEVEL_VALUES:])
    return Sighting(
        "length_shrinks", LENGTH, now, SHRUNK_SHARE * start, f"answers shrank from {start:.3g} to {now:.3g} tokens"
    )


def kl_runaway(values: Sequence[float]) -> Sighting | None:
    """Report a KL to the reference model that ran away and has not come back. A KL that only stops rising is still a
    runaway, for as long as the values before it are in the series."""
    before: float | None = None  # the KL before the runaway, or None while there is no runaway
    now = 0.0
    for index in range(REFERENCE_LAG + REFERENCE_LENGTH - 1, len(values)):
        now = median(values[index + 1 - LEVEL_VALUES : index + 1])
        if before is None and now > MIN_KL:
            end = index + 1 - REFERENCE_LAG
            reference = median(values[end - REFERENCE_LENGTH : end])
            before = reference if now > RUNAWAY_GROWTH * reference else None
        elif before is not None and now < max(MIN_KL, KL_END_GROWTH * before):
            before = None
    if before is None:
        return None
    why = f"the KL to the reference is {now:.3g} nats per token, up from {before:.3g} before it ran away"
    return Sighting("kl_runaway", KL, now, min(max(MIN_KL, RUNAWAY_GROWTH * before), now), why)


def calibration_drift(readings: Sequence[tuple[int, float, float]]) -> Sighting | None:
    """Report a calibration error that twice exceeded the range of chance. `readings` are (tick, error, 99 % quantile of
    the null distribution, which is the error of a perfect forecaster)."""

    def exceeds(index: int, excess: float) -> bool:
        return index >= 0 and readings[index][1] > readings[index][2] + excess

    if not is_active(
        len(readings),
        lambda index: exceeds(index, MIN_EXCESS_ECE) and exceeds(index - READING_DISTANCE, MIN_EXCESS_ECE),
        lambda index: not exceeds(index, 0.0),
    ):
        return None
    _, error, null = readings[-1]
    why = f"the calibration error is {error:.3g}, high for the second time (by chance, 1% of errors exceed {null:.3g})"
    return Sighting("calibration_drift", ECE, error, null, why)


def as_alerts(window: Window, *sightings: Sighting | None) -> list[Alert]:
    """Convert the sightings that are not None to alerts."""
    return [
        window.alert(
            sighting.symptom, sighting.metric, value=sighting.value, expected=sighting.expected, why=sighting.why
        )
        for sighting in sightings
        if sighting is not None
    ]


def recent_values(window: Window, metric: str, last: int = SEARCH_LENGTH) -> list[float]:
    """Return the metric's newest values on the path to the current weights, without NaN."""
    return [value for _, value in window.surviving_series(metric, last=last) if not math.isnan(value)]


def start_level(window: Window, metric: str) -> float | None:
    """Return the median of the window's first START_VALUES finite values, or None if there are fewer."""
    observed = (observation.metrics.get(metric) for observation in window.observations)
    first = list(islice((value for value in observed if value is not None and math.isfinite(value)), START_VALUES))
    return median(first) if len(first) == START_VALUES else None


def calibration_readings(window: Window) -> list[tuple[int, float, float]]:
    """Return (tick, calibration error, 99 % quantile of its null) of the newest ticks that have both. The quantile is
    estimated from the null's mean if the run only publishes the mean."""
    published = {spec.name for spec in window.run.metrics}
    name, factor = (NULL99, 1.0) if NULL99 in published else (NULL, NULL_FACTOR)
    nulls = dict(window.surviving_series(name, last=SEARCH_LENGTH))
    points = window.surviving_series(ECE, last=SEARCH_LENGTH)
    readings = [(tick, error, factor * nulls[tick]) for tick, error in points if tick in nulls]
    return [reading for reading in readings if all(map(math.isfinite, reading))]


def confidence_sighting(window: Window) -> Sighting | None:
    if not _publishes(window, CONFIDENCE):
        return None
    informativeness = recent_values(window, INFORMATIVENESS, LEVEL_VALUES)
    return confidence_collapse(recent_values(window, CONFIDENCE), start_level(window, CONFIDENCE), informativeness)


def advantage_sighting(window: Window) -> Sighting | None:
    if not _publishes(window, ADVANTAGE):
        return None
    return equal_advantages(
        recent_values(window, ADVANTAGE), recent_values(window, objective(window.run).name, LEVEL_VALUES)
    )


def equal_rewards_sighting(window: Window) -> Sighting | None:
    # A mean deviation of 0 within groups means the same as a share of 1.
    shares = recent_values(window, EQUAL_GROUPS) or [float(spread == 0) for spread in recent_values(window, SPREAD)]
    return equal_rewards(shares, recent_values(window, "reward"))


def length_sighting(window: Window) -> Sighting | None:
    if not _publishes(window, LENGTH):
        return None
    return shrinking_answers(recent_values(window, LENGTH), start_level(window, LENGTH))


def kl_sighting(window: Window) -> Sighting | None:
    """Report a runaway KL that began anywhere in the window."""
    return kl_runaway(recent_values(window, KL, len(window.observations))) if _publishes(window, KL) else None


def _publishes(window: Window, metric: str) -> bool:
    return any(spec.name == metric for spec in window.run.metrics)


def _is_solved(values: Sequence[float]) -> bool:
    return bool(values) and fmean(values[-LEVEL_VALUES:]) > SOLVED_LEVEL


def is_active(count: int, begins: Callable[[int], bool], ends: Callable[[int], bool]) -> bool:
    """Return whether a symptom began at any of `count` indices and has not ended since."""
    for index in range(count - 1, -1, -1):
        if begins(index):
            return True
        if ends(index):
            return False
    return False


def level_at(values: Sequence[float], index: int) -> float | None:
    """Return the median of the LEVEL_VALUES values up to and including `index`, or None if there are fewer."""
    return median(values[index + 1 - LEVEL_VALUES : index + 1]) if index + 1 >= LEVEL_VALUES else None


def is_below(values: Sequence[float], begin: float, end: float) -> bool:
    """Return whether the level fell below `begin` and has not risen to `end` since."""
    return is_active(
        len(values),
        lambda index: _is_level_below(values, index, begin),
        lambda index: not _is_level_below(values, index, end),
    )


def _is_level_below(values: Sequence[float], index: int, bound: float) -> bool:
    level = level_at(values, index)
    return level is not None and level < bound
