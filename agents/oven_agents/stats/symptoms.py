"""Detects symptoms of trouble in a policy that is trained on its own completions.

Each `detect_` function is a pure function of a metric's series, and returns a `Sighting` or None. The functions that
end in `_sighting` apply a detector to an agent's window. A symptom starts and ends at different thresholds
(hysteresis). If a gauge has no natural scale, its thresholds are relative to its first values in the window of 512
ticks. docs/benchmarks.md has the accuracy on simulated runs.
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

COMPLETION_LENGTH, KL, INFORMATIVENESS = "completions/mean_length", "kl", "informativeness/mean"
CONFIDENCE_STD, ADVANTAGE_STD, REWARD_STD = "confidence/std", "advantage/std", "reward_std"
EQUAL_GROUPS, TEACHER = "frac_reward_zero_std", "teacher.active"
ECE, ECE_NULL, ECE_NULL_99 = "calibration/ece", "calibration/ece_null", "calibration/ece_null_99"

LEVEL_VALUES: Final = 5
"""Number of values whose median is a gauge's level, enough that two outliers cannot change it."""
SEARCH_LENGTH: Final = 40
"""Number of newest values to search for a symptom's start. If a symptom started earlier and its level is between the
two thresholds, it counts as ended."""
START_VALUES: Final = 10
"""Number of first values whose median is a gauge's start level."""
CONSTANT_DEVIATION: Final = 0.1
"""Standard deviation below which stated confidences are useless. Evenly spread confidences have 0.29."""
COLLAPSED_SHARE: Final = 0.4
"""Share of its start level below which the spread of confidences has collapsed. Good calibration may halve it."""
SOLVED_LEVEL: Final = 0.9
"""Mean objective, or informativeness, above which little spread is expected, because nearly all answers are correct."""
EQUAL_DEVIATION: Final = 0.02
"""Standard deviation of advantages, in the reward's unit, below which all completions look alike. With rewards between
0 and 1, the deviation is at least 0.2 while there is something to learn."""
EQUAL_TICKS: Final = 15
"""Number of consecutive ticks with equal rewards in every group. So many cannot be chance, even in small groups."""
SHRUNK_SHARE: Final = 0.6
"""Share of their start length below which answers have shrunk. A quarter less may have good reasons."""
RUNAWAY_GROWTH: Final = 3.0
"""Growth of the KL over REFERENCE_LAG values that counts as a runaway. A learning policy's KL grows far more slowly."""
REFERENCE_LAG: Final = 10
"""Number of values between the end of the KL's reference and its current level."""
REFERENCE_LENGTH: Final = 10
"""Number of values whose median is the KL's reference."""
MIN_KL: Final = 0.6
"""Minimum KL of a runaway, in nats per token. Below it, the policy may be moving towards the task."""
KL_END_GROWTH: Final = 1.5
"""Multiple of the KL before a runaway. Once the KL is below this multiple or below MIN_KL, the runaway has ended."""
READING_DISTANCE: Final = 5
"""Number of values between two readings that must both exceed the null distribution. At this distance, with 64 answers
per step, a third of the 1,000 answers of a reading are new."""
MIN_EXCESS_ECE: Final = 0.03
"""Minimum excess of the calibration error over the null's 99 % quantile. A smaller drift is harmless."""
NULL_FACTOR: Final = 3.3
"""The null's 99 % quantile divided by its mean, for runs that only publish the mean. The largest ratio is 3.2 (2.58 /
0.80 of the half-normal distribution), which occurs if all confidences are equal."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A current symptom, with a metric whose `value` is beyond the `expected` bound."""

    symptom: str
    metric: str
    value: float
    expected: float
    why: str


def detect_confidence_collapse(
    deviations: Sequence[float], start: float | None = None, informativeness: Sequence[float] = ()
) -> Sighting | None:
    """Report stated confidences that are almost constant, or that vary far less than at the start."""
    if len(deviations) < LEVEL_VALUES or _is_solved(informativeness):
        return None
    bound = max(CONSTANT_DEVIATION, COLLAPSED_SHARE * (start or 0.0))
    if not is_below(deviations, bound, 1.3 * bound):
        return None
    now = median(deviations[-LEVEL_VALUES:])
    level = f"{now:.3g}" if start is None else f"{now:.3g} ({start:.3g} at the start)"
    why = f"confidences have a standard deviation of {level}: they do not distinguish right from wrong answers"
    return Sighting("confidence_collapse", CONFIDENCE_STD, now, bound, why)


def detect_equal_advantages(
    deviations: Sequence[float], objectives: Sequence[float] = (), metric: str = ADVANTAGE_STD
) -> Sighting | None:
    """Report advantages with almost no spread. Completions then get nearly equal rewards, and no gradient is left."""
    if len(deviations) < LEVEL_VALUES or _is_solved(objectives):
        return None
    if not is_below(deviations, EQUAL_DEVIATION, 2 * EQUAL_DEVIATION):
        return None
    now = median(deviations[-LEVEL_VALUES:])
    why = f"advantages have a standard deviation of {now:.3g}: the rewards do not distinguish completions"
    return Sighting("zero_advantage_groups", metric, now, EQUAL_DEVIATION, why)


def detect_equal_rewards(shares: Sequence[float], rewards: Sequence[float] = ()) -> Sighting | None:
    """Report rewards that were equal within every group for EQUAL_TICKS ticks. `shares` are the shares of groups with
    equal rewards. If nearly all answers are correct, equal rewards are a success, unless the reward never varies."""
    if _is_solved(rewards) and max(rewards) > min(rewards):
        return None

    def begins(index: int) -> bool:
        return index + 1 >= EQUAL_TICKS and min(shares[index + 1 - EQUAL_TICKS : index + 1]) >= 1

    if not is_active(len(shares), begins, lambda index: _is_level_below(shares, index, 1.0)):
        return None
    current = f" at {rewards[-1]:.3g}" if rewards else ""
    why = (
        f"the policy is not learning: all rewards were equal within their groups for {EQUAL_TICKS} ticks{current}, so "
        "all advantages are 0. Check what the reward function returns for a few completions, whether completions are "
        "cut off before their answer (completions/clipped_ratio), and whether prompts are too easy or too hard"
    )
    return Sighting("zero_advantage_groups", EQUAL_GROUPS, 1.0, 1.0, why)


def detect_shrinking_answers(lengths: Sequence[float], start: float | None) -> Sighting | None:
    """Report completions far shorter than at the start."""
    if start is None or not is_below(lengths, SHRUNK_SHARE * start, 1.25 * SHRUNK_SHARE * start):
        return None
    now = median(lengths[-LEVEL_VALUES:])
    why = f"answers shrank from {start:.3g} to {now:.3g} tokens"
    return Sighting("length_shrinks", COMPLETION_LENGTH, now, SHRUNK_SHARE * start, why)


def detect_kl_runaway(values: Sequence[float]) -> Sighting | None:
    """Report a KL to the reference model that ran away and has not come back. A KL that only stops rising is still a
    runaway, as long as `values` reach back to before its start."""
    if max(values, default=0.0) <= MIN_KL:
        return None
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
    start_bound = max(MIN_KL, RUNAWAY_GROWTH * before)  # a KL that is coming down may be below this bound already
    return Sighting("kl_runaway", KL, now, min(start_bound, now), why)


def detect_calibration_drift(readings: Sequence[tuple[int, float, float]]) -> Sighting | None:
    """Report a calibration error that twice exceeded the range of chance. `readings` are (tick, error, 99 % quantile of
    the null distribution). The null distribution is that of a perfect forecaster's error."""

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
        for sighting in filter(None, sightings)
    ]


def recent_values(window: Window, metric: str, last: int = SEARCH_LENGTH) -> list[float]:
    """Return the metric's newest values on the path to the current weights, without NaN."""
    return [value for _, value in window.surviving_series(metric, last=last) if not math.isnan(value)]


def reference_kls(window: Window) -> list[float]:
    """Return the KL values to the current teacher. A new teacher has another KL without any change of the policy."""
    series = window.surviving_series(KL, after=window.last_change_tick(TEACHER))
    return [value for _, value in series if not math.isnan(value)]


def start_level(window: Window, metric: str) -> float | None:
    """Return the median of the window's first START_VALUES finite values, or None if there are fewer."""
    observed = (observation.metrics.get(metric) for observation in window.observations)
    first = list(islice((value for value in observed if value is not None and math.isfinite(value)), START_VALUES))
    return median(first) if len(first) == START_VALUES else None


def calibration_readings(window: Window) -> list[tuple[int, float, float]]:
    """Return (tick, calibration error, 99 % quantile of its null) for the newest ticks that have both values. The
    quantile is estimated from the null's mean if the run only publishes the mean."""
    published = {spec.name for spec in window.run.metrics}
    name, factor = (ECE_NULL_99, 1.0) if ECE_NULL_99 in published else (ECE_NULL, NULL_FACTOR)
    nulls = dict(window.surviving_series(name, last=SEARCH_LENGTH))
    points = window.surviving_series(ECE, last=SEARCH_LENGTH)
    readings = [(tick, error, factor * nulls[tick]) for tick, error in points if tick in nulls]
    return [reading for reading in readings if all(map(math.isfinite, reading))]


def confidence_sighting(window: Window) -> Sighting | None:
    if not _publishes(window, CONFIDENCE_STD):
        return None
    start = start_level(window, CONFIDENCE_STD)
    informativeness = recent_values(window, INFORMATIVENESS, LEVEL_VALUES)
    return detect_confidence_collapse(recent_values(window, CONFIDENCE_STD), start, informativeness)


def advantage_sighting(window: Window) -> Sighting | None:
    if not _publishes(window, ADVANTAGE_STD):
        return None
    objectives = recent_values(window, objective(window.run).name, LEVEL_VALUES)
    return detect_equal_advantages(recent_values(window, ADVANTAGE_STD), objectives)


def equal_rewards_sighting(window: Window) -> Sighting | None:
    # If the mean deviation within groups is 0, all groups have equal rewards.
    shares = recent_values(window, EQUAL_GROUPS) or [float(std == 0) for std in recent_values(window, REWARD_STD)]
    return detect_equal_rewards(shares, recent_values(window, "reward"))


def length_sighting(window: Window) -> Sighting | None:
    if not _publishes(window, COMPLETION_LENGTH):
        return None
    return detect_shrinking_answers(recent_values(window, COMPLETION_LENGTH), start_level(window, COMPLETION_LENGTH))


def kl_sighting(window: Window) -> Sighting | None:
    """Report a runaway KL that began anywhere in the window."""
    return detect_kl_runaway(reference_kls(window)) if _publishes(window, KL) else None


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
