"""Judges the levels of a run's metrics and settings, so that a run without any agent still gets its cause.

Each rule reads the ticks at the user's own settings, before a knob that moves the metric was first changed. Later ticks
show what the change did, which `interventions` reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, median
from typing import Final

from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats import optimizer_gauges as gauges
from oven_agents.stats.level_shift import shift_of_halves
from oven_agents.stats.lost_progress import is_half_lost, level_before
from oven_agents.stats.objective import held_out_metric, objective
from oven_agents.stats.robust_statistics import bending_noise, expected_maximum, noise, quantile
from oven_agents.stats.symptoms import COMPLETION_LENGTH, CONSTANT_DEVIATION
from oven_agents.stats.update_to_weight_ratio import MAX_LENGTH
from oven_core.mesh.actuator_values import number, shares

TEACHER, BETA, MIXTURE = "teacher.active", "grpo.beta", "data.mixture"
POLICY_KNOBS: Final = (gauges.LR_SCALE, gauges.ROLLBACK, BETA, TEACHER, MIXTURE, "reward.weights")
"""Knobs that move the reward or the KL."""
COSINES: Final = 8
"""Number of cosines that show a low rate."""
MIN_COSINE: Final = 0.40
"""Median cosine of gradient and momentum above which the rate is too low. In our tuned runs, it was at most 0.21."""
MIN_QUARTILE: Final = 0.30
"""Minimum lower quartile of the same cosines, so that a few high values are not enough."""
INITIAL_TICKS: Final = 40
"""Number of first ticks at which gradients of a new model agree at any rate."""
INITIAL_PROGRESS: Final = 0.05
"""Share of the run in which the same applies."""
SLOW_READINGS: Final = 9
"""Minimum number of held-out readings that show a slow rise: three in each third of the run."""
MIN_MOVEMENT: Final = 0.005
"""Sum of the lengths of all steps, as shares of the weights' norm, below which the model has hardly changed."""
MIN_STEADY_SHARE: Final = 0.7
"""Minimum gain from the middle third to the last, as a share of that from the first to the middle one."""
MAX_SLOW_SHARE: Final = 0.15
"""Share of the distance to the ceiling above which a rise is not slow."""
CLEAR_NOISES: Final = 4.0
"""Minimum rise in standard deviations of a reading."""
FADE_COSINES: Final = 30
"""Number of newest cosines that are compared with as many before them."""
MIN_REMAINING_SHARE: Final = 0.98
"""Share of the earlier mean cosine below which the agreement fades."""
MIN_BEST_REWARD: Final = 0.15
"""Minimum best level of a reward that can collapse. Half of a lower level is within the noise."""
COLLAPSED_TICKS: Final = 5
"""Number of last ticks at which a collapsed reward is below half of its best level."""
CERTAIN_SHARE: Final = 0.05
"""Share of the readings from which a collapse is certain. A shorter one may be a drift that comes back."""
LOST_NOISES: Final = 3.0
"""Minimum fall of a collapsed reward in standard deviations of a reading, beyond the expected maximum of the noise."""
PROVEN_STEPS: Final = 30
"""Number of first steps without a collapse that show that the rate can work."""
LONG_STEPS: Final = 10
"""Number of steps above MAX_LENGTH that are too many. A few may be due to their batches or to the optimizer's start."""
MIN_GROWTH: Final = 1.5
"""Minimum growth of the weights' norm that shows that long steps did not only replace each other."""
STARVED_SHARE: Final = 0.02
"""Share of the data below which a part gets almost nothing."""
MASTERED: Final = 0.95
"""Share of its ceiling from which a level is mastered, so that it may get any share of the data."""
MIN_PENALTY: Final = 0.04
"""Minimum weight × KL of a KL term that holds a policy back, next to advantages of about 1."""
MIN_HEADROOM: Final = 0.12
"""Distance of the reward to its ceiling, as a share of it, below which the reward can hardly improve."""
HALF: Final = 12
"""Number of ticks in each half of the window in which a KL and a reward are flat."""
WINDOW_STRIDE: Final = 4
"""Number of ticks between two such windows."""
MIN_EVALUATIONS: Final = 3
"""Minimum number of held-out readings under a teacher: one at the start and two that show no gain."""
FLAT_RATIOS: Final = (0.75, 1.2)
"""Minimum and maximum ratio between the later and the earlier half of a flat KL."""
MAX_FLAT_RISE: Final = 0.1
"""Maximum rise of a flat reward, as a share of its headroom."""
MIN_DECAY_SHARE: Final = 0.5
"""Share of a step's length at which weight decay outweighs the gradient. A tuned run had 0.012."""
MIN_OVERCONFIDENCE: Final = 0.2
"""Minimum excess of the mean confidence over the share of right answers."""
FIRST_VALUES: Final = 10
"""Number of first readings that give a level at the start."""


def read_levels(record: RunRecord) -> Iterator[Evidence]:
    """Yield evidence from the levels of the run's metrics and settings."""
    for rule in RULES:
        evidence = rule(record)
        if evidence is not None:
            yield evidence


def _low_rate(record: RunRecord) -> Evidence | None:
    """Successive gradients agree: each step is too short to use up its direction. The gradients of a new model agree at
    any rate, and at a good rate this fades."""
    points = record.finite(gauges.GRAD_COSINE, end=record.first_change(gauges.LR_SCALE, gauges.ROLLBACK))
    cosines = [value for _, value in points]
    is_new = not record.series.keys() & {"reward", COMPLETION_LENGTH}
    if is_new and _decay_shares(record):
        return None
    for start in range(len(points) - COSINES + 1):
        window = cosines[start : start + COSINES]
        if median(window) < MIN_COSINE or quantile(window, 0.25) < MIN_QUARTILE:
            continue
        if is_new and not _agreement_lasts(record, points[start][0], cosines[: start + COSINES]):
            continue
        text = (
            f"successive gradients point the same way (cosine {median(window):.2f} with their running mean over "
            f"{COSINES} steps; near 0 at a good rate), so the steps could be longer"
        )
        return Evidence("lr_too_low", 0.7, points[start][0], text)
    return None


def _slow_gain(record: RunRecord) -> Evidence | None:
    """Held-out quality rises steadily, and so slowly that it covers hardly any of the distance to its ceiling."""
    points, ceiling = _poor_gain(record)
    if len(points) < SLOW_READINGS:
        return None
    values = [value for _, value in points]
    third = len(values) // 3
    first, middle, last = fmean(values[:third]), fmean(values[third:-third]), fmean(values[-third:])
    is_steady = last - middle >= MIN_STEADY_SHARE * (middle - first) > 0
    if not is_steady or last - first <= CLEAR_NOISES * bending_noise(values):
        return None
    text = f"held-out quality rose steadily, but only from {values[0]:.3g} to {values[-1]:.3g} of {ceiling:g}"
    return Evidence("lr_too_low", 0.6, points[0][0], text)


def _unmoved_weights(record: RunRecord) -> Evidence | None:
    """All steps together hardly moved the weights, and held-out quality hardly gained."""
    points, ceiling = _poor_gain(record)
    lengths = record.values(gauges.UPDATE_RATIO, end=record.first_change(*POLICY_KNOBS))
    if len(points) < MIN_EVALUATIONS or len(lengths) < PROVEN_STEPS or sum(lengths) >= MIN_MOVEMENT:
        return None
    text = (
        f"all {len(lengths)} steps together moved the weights by at most {sum(lengths):.2%} of their norm, and "
        f"held-out quality went from {points[0][1]:.3g} to {points[-1][1]:.3g} of {ceiling:g}"
    )
    return Evidence("lr_too_low", 0.6, points[0][0], text)


def _poor_gain(record: RunRecord) -> tuple[Sequence[tuple[int, float]], float]:
    """Return the readings of the held-out metric and its ceiling if it gained hardly any of the distance to the
    ceiling. Otherwise, return no readings."""
    metric = held_out_metric(record.started)
    if metric is None or metric.ceiling is None or metric.better != "up":
        return (), 0.0
    points = record.finite(metric.name, end=record.first_change(*POLICY_KNOBS))
    headroom = metric.ceiling - points[0][1] if points else 0.0
    is_poor = headroom >= MIN_HEADROOM * metric.ceiling and points[-1][1] - points[0][1] <= MAX_SLOW_SHARE * headroom
    return (points, metric.ceiling) if is_poor else ((), 0.0)


def _agreement_lasts(record: RunRecord, tick: int, cosines: Sequence[float]) -> bool:
    """Return whether a new model's gradients still agree after its first steps, and no less than before."""
    first_ticks = max(INITIAL_TICKS, INITIAL_PROGRESS * (record.started.horizon.max_steps or 0))
    shift = shift_of_halves(cosines[-2 * FADE_COSINES :])
    has_begun = tick > record.ticks[0] + first_ticks and len(shift.before) >= COSINES
    return has_begun and fmean(shift.now) >= MIN_REMAINING_SHARE * fmean(shift.before)


def _collapse(record: RunRecord) -> Evidence | None:
    """The reward lost half of its best level and stayed there. Long steps before the fall are the likely cause."""
    end = record.first_change(*POLICY_KNOBS)
    points = record.finite("reward", end=end)
    values = [value for _, value in points]
    if len(values) < 2 * COLLAPSED_TICKS:
        return None
    best = level_before(values, COLLAPSED_TICKS)
    if best < MIN_BEST_REWARD or not is_half_lost(values, COLLAPSED_TICKS, best):
        return None
    before, highest = values[:-COLLAPSED_TICKS], max(values[-COLLAPSED_TICKS:])
    if best - highest < (LOST_NOISES + expected_maximum(len(before))) * noise(before):
        return None  # chance alone raises the best level of many readings
    onset = next(index for index in range(len(values), 0, -1) if values[index - 1] >= best / 2)
    tick = points[min(onset, len(points) - 1)][0]
    last = values[-COLLAPSED_TICKS:]
    text = (
        f"the reward fell from its best level, {best:.2f}, and has been below half of it in every reading since step "
        f"{record.step_at(tick):,} (median of the last {len(last)}: {median(last):.2f})"
    )
    if collapse_kind(record, tick) == "reward_collapse":
        is_brief = end == math.inf and len(values) - onset < CERTAIN_SHARE * len(values)  # nobody intervened
        return Evidence("reward_collapse", 0.6 if is_brief else 0.85, tick, text)
    return Evidence("lr_too_high", 0.8, points[0][0], f"after {_steps_until(record, tick)} steps at this rate, {text}")


def collapse_kind(record: RunRecord, tick: int) -> str:
    """Return the likely kind of a collapse of the reward at this tick. The rate is too high if steps were long, or if
    the run never trained well at this rate. Otherwise, the collapse may have any cause."""
    lengths = record.values(gauges.UPDATE_RATIO, first=tick - PROVEN_STEPS, end=tick)
    is_early = _steps_until(record, tick) < PROVEN_STEPS
    are_long = sum(length > MAX_LENGTH for length in lengths) >= LONG_STEPS
    return "lr_too_high" if is_early or are_long else "reward_collapse"


def _steps_until(record: RunRecord, tick: int) -> int:
    """Return the number of optimizer steps from the record's beginning to the tick. Many logs have only every tenth."""
    return record.step_at(tick) - record.steps[0]


def _long_steps(record: RunRecord) -> Evidence | None:
    """Long steps from the beginning made the weights grow. For a reward, a collapse is the better sign."""
    end = record.first_change(gauges.LR_SCALE, gauges.ROLLBACK)
    ratios, norms = record.finite(gauges.UPDATE_RATIO, end=end), record.values(gauges.WEIGHT_NORM, end=end)
    long_ticks = [tick for tick, ratio in ratios if ratio > MAX_LENGTH]
    is_early = len(long_ticks) >= LONG_STEPS and _steps_until(record, long_ticks[LONG_STEPS - 1]) < PROVEN_STEPS
    if objective(record.started).name != "loss" or not is_early or not norms or norms[-1] < MIN_GROWTH * norms[0]:
        return None
    longest = max(ratio for _, ratio in ratios)
    text = f"steps of up to {longest:.1%} of the weights made their norm grow from {norms[0]:.3g} to {norms[-1]:.3g}"
    return Evidence("lr_too_high", 0.8, long_ticks[0], text)


def _starved_level(record: RunRecord) -> Evidence | None:
    """Parts of the data that can still be learnt get almost no share."""
    mixture = shares(record.first_values.get(MIXTURE))
    end = record.first_change(MIXTURE)
    starved = [name for name, share in mixture.items() if share < STARVED_SHARE and not _is_mastered(record, name, end)]
    if not starved:
        return None
    parts = [f"{name} gets {mixture[name]:.0%} of the data{_level_text(record, name, end)}" for name in starved]
    return Evidence("skewed_mixture", 0.7, record.ticks[0], ", ".join(parts))


def _level_reading(record: RunRecord, level: str, end: float) -> tuple[str, float] | None:
    """Return the level's metric and its newest reading before tick `end`: held out, or else its reward."""
    for spec in record.started.metrics:
        if spec.name.endswith(f"/{level}") and spec.ceiling and (values := record.values(spec.name, end=end)):
            return spec.name, values[-1] / spec.ceiling
    return None


def _is_mastered(record: RunRecord, level: str, end: float) -> bool:
    reading = _level_reading(record, level, end)
    return reading is not None and reading[1] >= MASTERED


def _level_text(record: RunRecord, level: str, end: float) -> str:
    reading = _level_reading(record, level, end)
    return f" ({reading[0]} {reading[1]:.2f})" if reading else ""


def _binding_anchor(record: RunRecord) -> Evidence | None:
    """The KL term holds the policy at its teacher: both the KL and the reward are flat below the reward's ceiling."""
    end = record.first_change(*POLICY_KNOBS)
    beta = number(record.first_values.get(BETA))
    kls, rewards = record.finite("kl", end=end), record.values("reward", end=end)
    ceiling = next((spec.ceiling for spec in record.started.metrics if spec.name == "reward"), None) or 1.0
    if beta is None or min(len(kls), len(rewards)) < 2 * HALF:
        return None
    for start in range(0, len(kls) - 2 * HALF + 1, WINDOW_STRIDE):
        window = [value for _, value in kls[start : start + 2 * HALF]]
        reward = rewards[start : start + 2 * HALF]
        if len(reward) < 2 * HALF:
            break
        kl, growth = median(window[HALF:]), median(window[HALF:]) / max(median(window[:HALF]), 1e-12)
        headroom = (ceiling - fmean(reward[HALF:])) / ceiling
        rise = fmean(reward[HALF:]) - fmean(reward[:HALF])
        is_flat = FLAT_RATIOS[0] <= growth <= FLAT_RATIOS[1] and rise <= MAX_FLAT_RISE * headroom * ceiling
        if is_flat and beta * kl >= MIN_PENALTY and headroom >= MIN_HEADROOM:
            kind = "weak_teacher" if _has_stronger_teacher(record) else "kl_penalty_too_strong"
            text = (
                f"the KL term limits the policy: weight {beta:.3g} × KL {kl:.3f}, both flat with the reward at "
                f"{fmean(reward[HALF:]):.2f} of {ceiling:g}"
            )
            return Evidence(kind, 0.7, kls[start][0], text)
    return None


def _useless_teacher(record: RunRecord) -> Evidence | None:
    """The held-out metric stays where it was under a teacher that is not the strongest."""
    metric, end = held_out_metric(record.started), record.first_change(TEACHER, BETA, gauges.ROLLBACK)
    if metric is None or metric.ceiling is None or not _has_stronger_teacher(record):
        return None
    points = record.finite(metric.name, end=end)
    if len(points) < MIN_EVALUATIONS:
        return None
    first, last = points[0][1], fmean(value for _, value in points[-2:])
    headroom = metric.ceiling - first
    if headroom < MIN_HEADROOM * metric.ceiling or last - first > MAX_FLAT_RISE * headroom:
        return None
    text = f"{metric.name} went from {first:.2f} to {last:.2f} of {metric.ceiling:g} with the weaker teacher"
    return Evidence("weak_teacher", 0.8 if last < first else 0.6, points[0][0], text)


def _has_stronger_teacher(record: RunRecord) -> bool:
    """Return whether the first teacher was not the strongest. Choices are announced weakest first."""
    spec = next((spec for spec in record.started.actuators if spec.name == TEACHER), None)
    first = record.first_values.get(TEACHER)
    return spec is not None and first in spec.choices and first != spec.choices[-1]


def _decay(record: RunRecord) -> Evidence | None:
    """Weight decay makes up most of each step."""
    points = _decay_shares(record)
    if not points:
        return None
    share = min(median(share for _, share in points), 1.0)
    return Evidence(
        "weight_decay_too_high", 0.9, points[0][0], f"weight decay makes up {share:.0%} of each step's length"
    )


def _decay_shares(record: RunRecord) -> list[tuple[int, float]]:
    """Return (tick, share of weight decay in the step) if the decay outweighs the gradient, or else an empty list."""
    decay, end = number(record.first_values.get(gauges.WEIGHT_DECAY)), record.first_change(gauges.WEIGHT_DECAY)
    rates = dict(record.finite(gauges.LEARNING_RATE, end=end))
    lengths = record.finite(gauges.UPDATE_RATIO, end=end)
    points = [(tick, rates[tick] * (decay or 0.0) / length) for tick, length in lengths if tick in rates and length > 0]
    is_large = len(points) >= gauges.LEVEL_TICKS and median(share for _, share in points) >= MIN_DECAY_SHARE
    return points if is_large else []


def _confidence(record: RunRecord) -> Evidence | None:
    """Stated confidences hardly vary, or are far above the share of right answers."""
    deviations = record.finite("confidence/std")[:FIRST_VALUES]
    means = record.values("confidence/mean")[:FIRST_VALUES]
    informative = record.values("informativeness/mean")[:FIRST_VALUES]
    if len(deviations) < FIRST_VALUES or not means or not informative:
        return None
    deviation, mean, right = median(value for _, value in deviations), median(means), median(informative)
    text = f"stated confidences are {mean:.2f} ± {deviation:.2f} at the start, and {right:.0%} of the answers are right"
    if mean > right + MIN_OVERCONFIDENCE and mean > 0.8:
        return Evidence("overconfident", 0.85, deviations[0][0], text)
    if deviation < CONSTANT_DEVIATION:
        return Evidence("confidence_untaught", 0.85, deviations[0][0], text)
    return None


RULES: Final[Sequence[Callable[[RunRecord], Evidence | None]]] = (
    _low_rate, _slow_gain, _unmoved_weights, _collapse, _long_steps, _starved_level, _binding_anchor,
    _useless_teacher, _decay, _confidence,
)  # fmt: skip
