"""Detects lasting changes, spikes and NaN in a run's metrics, and returns alarms with their onsets and symptoms.

Symptoms are nodes of the knowledge graph. The detectors are deterministic, so alarms in an answer can be checked."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final, Literal

from oven_agents.diagnosis.change_points import MIN_NOISE_SHARE, Change, cusum, page_hinkley
from oven_agents.stats.robust_statistics import noise
from oven_core.protocol.messages import MetricSpec

Series = tuple[Sequence[int], Sequence[float]]
"""Ticks and readings of one metric, oldest first. Ticks without a reading are omitted, but NaN and infinity are not."""
Detector = Literal["cusum", "page_hinkley", "spike", "not_finite", "held_out", "unexplained"]

MIN_SPIKE_SIZE: Final = 60.0
"""Minimum size of a spike in standard deviations. In healthy runs with small batches, spikes reach a size of 30."""
MIN_SPIKE_RATIO: Final = 40.0
"""Minimum ratio of a spike to the level before it. In healthy runs, a policy's gradient reaches 30 times the level."""
MAX_EXPLAINED_RATIO: Final = 3.0
"""Updates explain a relative change of the weights' norm up to this multiple of the largest update ratio nearby. A step
changes the norm by at most the step's length, and decoupled decay adds less than that."""
LEVEL_READINGS: Final = 30
"""Number of earlier readings that define the level before a spike or NaN. Spikes are detected only after this many."""
SPIKE_CANDIDATES: Final = 8
"""Number of the largest readings to check for spikes. If more readings are that large, the level has risen."""
MIN_HELD_OUT_DROP: Final = 0.03
"""Minimum relative deterioration of a held-out metric: half of its variation if it has a few hundred examples."""
SIMULTANEOUS_TICKS: Final = 25
"""Maximum ticks between the onsets of changes that count as simultaneous."""
MIN_JUMP_SIZE: Final = 3.0
"""Minimum jump of a judge's mean in standard deviations. A policy that learns changes the mean more slowly."""
MIN_MEAN_CHANGE: Final = 0.05
"""Minimum change of a judge's mean, or of a difficulty level's mean reward, as a share of its earlier value."""
MIN_MEAN_CHANGE_SIZE: Final = 1.5
"""Minimum size of the same change in standard deviations."""
MAX_ALARMS: Final = 64
"""Maximum number of alarms, so that a corrupt log cannot fill a model's context. Only the strongest are reported."""
MAX_SIZE: Final = 999.0
"""Maximum size of an alarm. A constant metric has no noise, so its first change would have an arbitrary size."""
JUMP_READINGS: Final = 8
"""A change is a jump if it is detected in fewer readings than this. A change of 4 standard deviations takes five."""
WEIGHT_NORM, UPDATE_RATIO = "optim/weight_norm", "optim/update_ratio"
JUDGE_METRICS, LEVEL_METRICS = "rewards/*/mean", "reward/*"
"""Patterns of the metrics for the mean of each reward function, and for the mean reward of each difficulty level."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A symptom of a problem and the metric that shows it."""

    detector: Detector
    metric: str
    symptom: str
    """A node of the knowledge graph."""
    onset: int
    """Estimated tick at which the change began."""
    raised: int
    """Tick at which the detector raised the alarm."""
    before: float
    """Level before the change."""
    after: float
    """Level from the onset to the detection."""
    size: float
    """Size of the change in standard deviations of one reading, at most MAX_SIZE. For `unexplained`, it is a multiple
    of the largest update ratio. For `held_out`, it is a multiple of the typical change between two readings."""

    def as_json(self) -> dict[str, Any]:
        """Return the alarm as a JSON object with five significant digits per number."""
        return {
            name: float(f"{value:.5g}") if isinstance(value, float) else value for name, value in asdict(self).items()
        }


def find_alarms(series: Mapping[str, Series], specs: Sequence[MetricSpec]) -> list[Alarm]:
    """Return the MAX_ALARMS strongest alarms on announced metrics, which answers may cite, sorted by onset."""
    directions = {spec.name: spec.better for spec in specs}
    alarms: list[Alarm] = []
    for name in sorted(directions.keys() & series.keys()):
        ticks, values = _keep_finite(series[name])
        if len(values) < len(series[name][1]):
            alarms.append(_make_non_finite_alarm(name, *series[name]))
        gauges = gauges_for(name)
        if gauges and (name != "loss" or directions[name] == "down"):  # the loss may have been announced as "neither"
            alarms += _find_changes(name, gauges, ticks, values)
        if name == "grad_norm":
            alarms += _find_spike(name, ticks, values)
    alarms += _find_displaced_weights(series, directions)
    alarms += _find_diverging_judge(series, directions)
    alarms += _find_forgotten_levels(series, directions)
    alarms += _find_held_out_drops(series, specs)
    strongest = sorted(alarms, key=lambda alarm: (-alarm.size, alarm.onset, alarm.metric))[:MAX_ALARMS]
    return sorted(strongest, key=lambda alarm: (alarm.onset, alarm.metric, alarm.symptom))


def _keep_finite(series: Series) -> Series:
    pairs = [(tick, value) for tick, value in zip(*series, strict=True) if math.isfinite(value)]
    return [tick for tick, _ in pairs], [value for _, value in pairs]


def _find_changes(name: str, gauges: Sequence[Gauge], ticks: Sequence[int], values: Sequence[float]) -> list[Alarm]:
    """Return the strongest alarm per symptom. A slow drift counts only if CUSUM did not find its symptom."""
    changes = cusum(values)
    strongest: dict[str, Alarm] = {}
    for gauge in gauges:
        drift = page_hinkley(values, 1) if gauge.finds_drifts and gauge.up else None
        candidates = changes if drift is None else [*changes, drift]
        for change in candidates:
            symptom = _find_symptom(gauge, change)
            if symptom and (symptom not in strongest or change.test == "cusum"):
                alarm = _make_alarm(name, symptom, change, ticks)
                if symptom not in strongest or alarm.size > strongest[symptom].size:
                    strongest[symptom] = alarm
    return list(strongest.values())


def _find_symptom(gauge: Gauge, change: Change) -> str:
    """Return the symptom of a change, or an empty string if the change is too small."""
    if change.size < gauge.min_size or abs(change.after - change.before) < gauge.min_difference:
        return ""
    low, high = sorted((change.before, change.after))
    if gauge.min_ratio > 1 and (high <= 0 or high < gauge.min_ratio * low):
        return ""
    if change.sign < 0:
        return gauge.down
    is_jump = change.detected_at - change.onset < JUMP_READINGS
    return gauge.jump if gauge.jump and is_jump else gauge.up


def _make_alarm(name: str, symptom: str, change: Change, ticks: Sequence[int]) -> Alarm:
    onset, raised = ticks[min(change.onset, len(ticks) - 1)], ticks[change.detected_at]
    size = min(change.size, MAX_SIZE)
    return Alarm(change.test, name, symptom, onset, raised, change.before, change.after, size)


def _make_non_finite_alarm(name: str, ticks: Sequence[int], values: Sequence[float]) -> Alarm:
    first_index = next(index for index, value in enumerate(values) if not math.isfinite(value))
    earlier_values = [value for value in values[:first_index] if math.isfinite(value)][-LEVEL_READINGS:]
    level = median(earlier_values) if earlier_values else 0.0  # also reported as the level after, which must be finite
    return Alarm("not_finite", name, "loss_nan", ticks[first_index], ticks[first_index], level, level, MAX_SIZE)


def _find_spike(name: str, ticks: Sequence[int], values: Sequence[float]) -> list[Alarm]:
    """Return an alarm for the largest single reading that is far above the readings before it, if there is one."""
    if len(values) <= LEVEL_READINGS:
        return []
    largest_first = sorted(range(LEVEL_READINGS, len(values)), key=lambda index: (-values[index], index))
    for index in largest_first[:SPIKE_CANDIDATES]:
        earlier_values = values[index - LEVEL_READINGS : index]
        level = median(earlier_values)
        noise_std = max(noise(earlier_values), MIN_NOISE_SHARE * abs(level), 1e-12)
        size = (values[index] - level) / noise_std
        if size >= MIN_SPIKE_SIZE and values[index] >= MIN_SPIKE_RATIO * level:
            tick = ticks[index]
            return [Alarm("spike", name, "grad_norm_spike", tick, tick, level, values[index], min(size, MAX_SIZE))]
    return []


def _find_displaced_weights(series: Mapping[str, Series], directions: Mapping[str, str]) -> list[Alarm]:
    """Return an alarm for the first step in which something other than an update changed the weights' norm."""
    if not {WEIGHT_NORM, UPDATE_RATIO} <= directions.keys() & series.keys():
        return []
    update_ratios = dict(zip(*series[UPDATE_RATIO], strict=True))
    ticks, norms = series[WEIGHT_NORM]
    for index in range(LEVEL_READINGS, len(ticks)):
        tick, before, after = ticks[index], norms[index - 1], norms[index]
        nearby_ratios = [update_ratios[nearby] for nearby in (tick - 1, tick, tick + 1) if nearby in update_ratios]
        if not nearby_ratios or not all(map(math.isfinite, (before, after, *nearby_ratios))) or before <= 0:
            continue
        relative_change = abs(after - before) / before
        max_ratio = max(nearby_ratios)
        if max_ratio > 0 and relative_change > MAX_EXPLAINED_RATIO * max_ratio:
            size = min(relative_change / max_ratio, MAX_SIZE)
            return [Alarm("unexplained", WEIGHT_NORM, "weights_displaced", tick, tick, before, after, size)]
    return []


def _find_diverging_judge(series: Mapping[str, Series], directions: Mapping[str, str]) -> list[Alarm]:
    """Return an alarm for the first judge whose mean jumps while those of the other judges do not."""
    judges = [name for name in sorted(directions.keys() & series.keys()) if fnmatchcase(name, JUDGE_METRICS)]
    jumps: list[Alarm] = []
    for name in judges:
        ticks, changes = _find_mean_changes(series[name])
        for change in changes:
            is_jump = change.size >= MIN_JUMP_SIZE and change.detected_at - change.onset < JUMP_READINGS
            if is_jump and change.sign > 0:
                jumps.append(_make_alarm(name, "judges_apart", change, ticks))
    for jump in jumps:
        other_onsets = [alarm.onset for alarm in jumps if alarm.metric != jump.metric]
        if len(judges) > 1 and not any(abs(onset - jump.onset) <= SIMULTANEOUS_TICKS for onset in other_onsets):
            return [jump]
    return []


def _find_forgotten_levels(series: Mapping[str, Series], directions: Mapping[str, str]) -> list[Alarm]:
    """Return an alarm for each difficulty level whose mean reward falls while the overall reward does not."""
    names = sorted(directions.keys() & series.keys())
    reward_falls = _find_falls(series["reward"], "reward") if "reward" in names else []
    alarms: list[Alarm] = []
    for name in names:
        if not fnmatchcase(name, LEVEL_METRICS):
            continue
        for fall in _find_falls(series[name], name):
            if not any(abs(reward_fall.onset - fall.onset) <= SIMULTANEOUS_TICKS for reward_fall in reward_falls):
                alarms.append(fall)
                break
    return alarms


def _find_mean_changes(series: Series) -> tuple[Sequence[int], list[Change]]:
    """Return the ticks of the finite readings, and the changes of at least MIN_MEAN_CHANGE and MIN_MEAN_CHANGE_SIZE."""
    ticks, values = _keep_finite(series)
    changes = [
        change
        for change in cusum(values)
        if change.size >= MIN_MEAN_CHANGE_SIZE
        and abs(change.after - change.before) >= MIN_MEAN_CHANGE * abs(change.before)
    ]
    return ticks, changes


def _find_falls(series: Series, name: str) -> list[Alarm]:
    ticks, changes = _find_mean_changes(series)
    return [_make_alarm(name, "level_forgotten", change, ticks) for change in changes if change.sign < 0]


def _find_held_out_drops(series: Mapping[str, Series], specs: Sequence[MetricSpec]) -> list[Alarm]:
    """Return alarms for held-out metrics that have become worse. They have too few readings for the other tests."""
    alarms: list[Alarm] = []
    has_reward = any(spec.name == "reward" for spec in specs)
    for spec in specs:
        if not spec.held_out or spec.better == "neither" or spec.name not in series:
            continue
        sign = 1.0 if spec.better == "up" else -1.0
        ticks, values = _keep_finite(series[spec.name])
        if len(values) < 4:  # the last two readings are compared with at least two earlier ones
            continue
        best_index = max(range(len(values) - 2), key=lambda index: sign * values[index])
        best = values[best_index]
        differences = [abs(later - earlier) for earlier, later in pairwise(values[: best_index + 1])]
        typical_change = max(median(differences) if differences else 0.0, 0.5 * MIN_HELD_OUT_DROP * abs(best), 1e-12)
        drop = min(sign * (best - value) for value in values[-2:])  # both of the last two readings must be worse
        if drop < max(MIN_HELD_OUT_DROP * abs(best), typical_change):
            continue
        symptom = "reward_up_heldout_down" if has_reward else "heldout_loss_rises"
        onset = ticks[best_index + 1]
        after = fmean(values[-2:])
        alarms.append(Alarm("held_out", spec.name, symptom, onset, ticks[-1], best, after, drop / typical_change))
    return alarms


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """The symptoms that changes in a metric indicate, and how large a change must be to raise an alarm."""

    metric: str
    """Name or pattern of the metric."""
    up: str = ""
    """Symptom of an increase. If it is empty, an increase raises no alarm."""
    down: str = ""
    """Symptom of a decrease. If it is empty, a decrease raises no alarm."""
    jump: str = ""
    """Symptom of a fast increase. If it is empty, a fast increase has the symptom `up`."""
    min_size: float = 2.0
    """Minimum change in standard deviations of one reading."""
    min_ratio: float = 1.0
    """Minimum ratio of the larger level to the smaller."""
    min_difference: float = 0.0
    """Minimum difference of the levels in the metric's unit."""
    finds_drifts: bool = False
    """Whether to also run the Page-Hinkley test for an increase, which detects slow drifts."""


GAUGES: Final = (
    Gauge(metric="loss", up="loss_creeps_up", jump="loss_spike", min_size=2.5, min_ratio=1.05, finds_drifts=True),
    Gauge(metric="loss", down="loss_drops_suddenly", min_size=5.0, min_ratio=1.15),
    Gauge(metric="grad_norm", up="grad_norm_growth", min_size=3.0, min_ratio=1.7),
    Gauge(metric="grad_norm", down="grad_norm_vanishes", min_size=2.0, min_ratio=3.0),
    Gauge(metric="optim/update_ratio", up="update_ratio_high", down="update_ratio_low", min_size=3.0, min_ratio=1.6),
    Gauge(metric="optim/weight_norm", up="weight_norm_growth", min_size=5.0, min_ratio=1.1),
    Gauge(metric="optim/weight_norm", down="weights_shrink", min_size=5.0, min_ratio=1.05),
    Gauge(metric="optim/grad_momentum_cos", up="gradients_aligned", min_size=2.0, min_difference=0.25),
    Gauge(metric="optim/grad_momentum_cos", down="gradients_opposed", min_size=2.0, min_difference=0.25),
    Gauge(metric="reward", down="policy_collapse", min_size=1.5, min_ratio=1.1),
    Gauge(metric="kl", up="kl_runaway", min_size=2.5, min_ratio=3.0, min_difference=0.3),
    Gauge(metric="entropy", up="entropy_growth", down="entropy_collapse", min_size=2.0, min_ratio=1.6),
    Gauge(metric="frac_reward_zero_std", up="zero_advantage_groups", min_size=2.0, min_difference=0.2),
    Gauge(metric="completions/mean_length", up="length_drift", down="length_shrinks", min_size=2.0, min_ratio=1.15),
    Gauge(metric="completions/clipped_ratio", up="truncated_completions", min_size=2.0, min_difference=0.15),
    Gauge(metric="clip_ratio/*", up="clip_saturated", min_size=2.0, min_difference=0.1),
    Gauge(metric="committee/abstentions", up="judge_outage", min_size=3.0, min_difference=0.05),
    Gauge(metric="committee/agreement", down="judge_disagreement", min_size=2.0, min_difference=0.12),
    Gauge(metric="data/repeated", up="data_repeated", min_size=3.0, min_difference=0.1),
    Gauge(metric="confidence/std", down="confidence_collapse", min_size=2.0, min_ratio=2.0),
    Gauge(metric="advantage/std", down="zero_advantage_groups", min_size=2.0, min_ratio=3.0),
    Gauge(metric="calibration/ece", up="calibration_drift", min_size=3.0, min_difference=0.05),
    Gauge(metric="sampling/*", up="sampling_mismatch", down="sampling_mismatch", min_size=4.0, min_difference=0.02),
    Gauge(metric="step_time", up="slow_steps", min_size=3.0, min_ratio=1.3),
    Gauge(metric="frontier/*", up="frontier_drift", min_size=3.0, min_ratio=1.2),
)


def gauges_for(metric: str) -> tuple[Gauge, ...]:
    """Return the gauges of a metric. Most user-defined metrics have none."""
    return tuple(gauge for gauge in GAUGES if gauge.metric == metric or fnmatchcase(metric, gauge.metric))
