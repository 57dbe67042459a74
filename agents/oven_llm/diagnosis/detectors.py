"""Raises alarms on a run's metrics: lasting changes with their onsets and their symptoms in the knowledge graph.

Pure and deterministic: the same series always give the same alarms, so an answer that cites one can be checked.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from statistics import fmean, median
from typing import Any, Final, Literal

from oven_agents.stats.robust_statistics import noise
from oven_core.protocol.messages import MetricSpec
from oven_llm.diagnosis.change_points import Change, cusum, page_hinkley

Series = tuple[Sequence[int], Sequence[float]]
"""Ticks and readings of one metric, oldest first. Ticks without a reading are omitted; NaN and infinity are not."""
Detector = Literal["cusum", "page_hinkley", "spike", "not_finite", "apart", "held_out", "unexplained"]

SPIKE: Final = 60.0
"""Standard deviations of a spike above its neighbours. Gradient norms of healthy small batches reach 30."""
SPIKE_FACTOR: Final = 40.0
"""Minimum ratio of a spike to that level. In healthy runs a policy's gradient reaches 30 times the level."""
UNEXPLAINED: Final = 3.0
"""Minimum change of the weights' norm that no update explains, as a multiple of the largest update around it. A step
changes a norm by at most its own length, and decoupled decay adds less than that."""
WINDOW: Final = 30
"""Number of earlier readings that define the level below a spike."""
CANDIDATES: Final = 8
"""Number of largest readings to check for spikes. A level that has risen for good has more of them."""
WORSE: Final = 0.03
"""Share of its best reading by which a held-out metric must be worse, twice in a row: half of the variation of an
evaluation on a few hundred examples."""
TOGETHER: Final = 25
"""Maximum ticks between two changes that count as simultaneous."""
JUMP: Final = 3.0
"""Standard deviations by which a judge's mean must jump. A policy's learning shows more slowly."""
APART: Final = 0.05
"""Share of its level by which a judge's mean must change for the judges to diverge."""
MOST: Final = 64
"""Maximum number of alarms, the strongest ones: a log of garbage must not fill a model's context."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A symptom and the metric that shows it."""

    detector: Detector
    metric: str
    symptom: str
    """A node of the knowledge graph."""
    onset: int
    """Estimated tick at which the change began."""
    raised: int
    """Tick at which the detector raised it."""
    before: float
    """Level before."""
    after: float
    """Level from the onset to the detection."""
    size: float
    """Size of the change in standard deviations of one reading, at most LARGEST."""

    def plain(self) -> dict[str, Any]:
        """Return it for JSON, with five digits per figure."""
        return {k: float(f"{v:.5g}") if isinstance(v, float) else v for k, v in asdict(self).items()}


NORM, RATIO = "optim/weight_norm", "optim/update_ratio"
LARGEST: Final = 999.0
"""Maximum size of an alarm. A gauge that never moved has no noise, so its first change has an arbitrary size."""


def alarms(series: Mapping[str, Series], specs: Sequence[MetricSpec]) -> list[Alarm]:
    """Return all alarms in the order of their onsets. `specs` are the run's announced metrics; others raise no alarm,
    because an answer could not cite them."""
    better = {spec.name: spec.better for spec in specs}
    raised: list[Alarm] = []
    for name in sorted(better.keys() & series.keys()):
        ticks, values = _finite(series[name])
        if len(values) < len(series[name][1]):
            raised.append(_not_finite(name, *series[name]))
        gauges = [gauge for gauge in gauges_of(name) if name != "loss" or better[name] == "down"]
        if gauges:
            raised += _lasting(name, gauges, ticks, values)
        if name == "grad_norm":
            raised += _spikes(name, ticks, values)
    raised += _displaced(series, better)
    raised += _diverging_judges(series, better)
    raised += _held_out(series, specs)
    strongest = sorted(raised, key=lambda alarm: (-alarm.size, alarm.onset, alarm.metric))[:MOST]
    return sorted(strongest, key=lambda alarm: (alarm.onset, alarm.metric, alarm.symptom))


def _finite(series: Series) -> Series:
    pairs = [(tick, value) for tick, value in zip(*series, strict=True) if math.isfinite(value)]
    return [tick for tick, _ in pairs], [value for _, value in pairs]


def _lasting(name: str, gauges: Sequence[Gauge], ticks: Sequence[int], values: Sequence[float]) -> list[Alarm]:
    changes = cusum(values)
    strongest: dict[str, Alarm] = {}
    for gauge in gauges:
        drift = page_hinkley(values, 1) if gauge.slow and gauge.up else None
        for change in (*changes, drift) if drift is not None else changes:
            symptom = _symptom(gauge, change)
            if symptom and (symptom not in strongest or change.test == "cusum"):
                alarm = _alarm(name, symptom, change, ticks)
                if symptom not in strongest or alarm.size > strongest[symptom].size:
                    strongest[symptom] = alarm
    return list(strongest.values())


def _symptom(gauge: Gauge, change: Change) -> str:
    """Return the symptom of a change, empty if the change is too small."""
    if change.size < gauge.size or abs(change.after - change.before) < gauge.by:
        return ""
    low, high = sorted((change.before, change.after))
    if gauge.factor > 1 and not (low > 0 and high >= gauge.factor * low) and not low <= 0 < high:
        return ""
    if change.sign < 0:
        return gauge.down
    return gauge.jump if gauge.jump and change.raised - change.onset < FAST else gauge.up


def _alarm(name: str, symptom: str, change: Change, ticks: Sequence[int]) -> Alarm:
    return Alarm(
        change.test,
        name,
        symptom,
        ticks[min(change.onset, len(ticks) - 1)],
        ticks[change.raised],
        change.before,
        change.after,
        min(change.size, LARGEST),
    )


def _not_finite(name: str, ticks: Sequence[int], values: Sequence[float]) -> Alarm:
    first = next(index for index, value in enumerate(values) if not math.isfinite(value))
    finite = [value for value in values[:first] if math.isfinite(value)][-WINDOW:]
    before = median(finite) if finite else 0.0
    return Alarm("not_finite", name, "loss_nan", ticks[first], ticks[first], before, before, LARGEST)


def _spikes(name: str, ticks: Sequence[int], values: Sequence[float]) -> list[Alarm]:
    """Return the largest single reading far above those before it, if there is one."""
    if len(values) <= WINDOW:
        return []
    for index in sorted(range(WINDOW, len(values)), key=lambda index: (-values[index], index))[:CANDIDATES]:
        before = values[index - WINDOW : index]
        level = median(before)
        deviation = max(noise(before), 1e-3 * abs(level), 1e-12)
        size = (values[index] - level) / deviation
        if size >= SPIKE and values[index] >= SPIKE_FACTOR * level:
            tick, size = ticks[index], min(size, LARGEST)
            return [Alarm("spike", name, "grad_norm_spike", tick, tick, level, values[index], size)]
    return []


def _displaced(series: Mapping[str, Series], better: Mapping[str, str]) -> list[Alarm]:
    """Return the first step in which the weights' norm changed by more than the updates around it explain: something
    else wrote to the weights."""
    if not {NORM, RATIO} <= better.keys() & series.keys():
        return []
    updates = dict(zip(*series[RATIO], strict=True))
    ticks, norms = series[NORM]
    for index in range(WINDOW, len(ticks)):
        tick, before, now = ticks[index], norms[index - 1], norms[index]
        near = [updates[neighbour] for neighbour in (tick - 1, tick, tick + 1) if neighbour in updates]
        if not near or not all(map(math.isfinite, (before, now, *near))) or before <= 0:
            continue
        change, explained = abs(now - before) / before, max(near)
        if explained > 0 and change > UNEXPLAINED * explained:
            size = min(change / explained, LARGEST)
            return [Alarm("unexplained", NORM, "weights_displaced", tick, tick, before, now, size)]
    return []


def _diverging_judges(series: Mapping[str, Series], better: Mapping[str, str]) -> list[Alarm]:
    """Return a judge whose mean jumps while no other's does, and levels that fall while the reward does not."""
    diverging: list[Alarm] = []
    names = sorted(better.keys() & series.keys())
    judges = {name: _changes(series[name]) for name in names if fnmatchcase(name, JUDGES)}
    jumps = [
        (name, ticks, change)
        for name, changes in judges.items()
        for ticks, change in changes
        if change.size >= JUMP and change.raised - change.onset < FAST
    ]
    for name, ticks, jump in jumps if len(judges) > 1 else ():
        onsets = [t[j.onset] for judge, t, j in jumps if judge != name and j.sign == jump.sign]
        if jump.sign > 0 and not any(abs(onset - ticks[jump.onset]) <= TOGETHER for onset in onsets):
            diverging.append(_alarm(name, "judges_apart", jump, ticks))
            break
    reward = _changes(series["reward"]) if "reward" in names else []
    for name in names:
        if fnmatchcase(name, LEVELS):
            for ticks, fall in _changes(series[name]):
                together = any(r.sign < 0 and abs(t[r.onset] - ticks[fall.onset]) <= TOGETHER for t, r in reward)
                if fall.sign < 0 and not together:
                    diverging.append(_alarm(name, "level_forgotten", fall, ticks))
                    break
    return diverging


def _changes(series: Series) -> list[tuple[Sequence[int], Change]]:
    ticks, values = _finite(series)
    return [
        (ticks, change)
        for change in cusum(values)
        if change.size >= 1.5 and abs(change.after - change.before) >= APART * abs(change.before)
    ]


def _held_out(series: Mapping[str, Series], specs: Sequence[MetricSpec]) -> list[Alarm]:
    """Return held-out metrics whose last two readings are worse than their best by more than chance. They have too few
    readings for the other tests."""
    worse: list[Alarm] = []
    rewarded = any(spec.name == "reward" for spec in specs)
    for spec in specs:
        if not spec.held_out or spec.better == "neither" or spec.name not in series:
            continue
        sign = 1.0 if spec.better == "up" else -1.0
        ticks, values = series[spec.name]
        pairs = [(tick, value) for tick, value in zip(ticks, values, strict=True) if math.isfinite(value)]
        if len(pairs) < 4:
            continue
        best = max(range(len(pairs) - 2), key=lambda index: sign * pairs[index][1])
        worst_of_last = max(sign * value for _, value in pairs[-2:])
        steps = [abs(b[1] - a[1]) for a, b in pairwise(pairs[: best + 1])]
        unit = max(median(steps) if steps else 0.0, 0.5 * WORSE * abs(pairs[best][1]), 1e-12)
        fall = sign * pairs[best][1] - worst_of_last
        if fall < max(WORSE * abs(pairs[best][1]), unit):
            continue
        symptom = "reward_up_heldout_down" if rewarded else "heldout_loss_rises"
        after = fmean(value for _, value in pairs[-2:])
        worse.append(
            Alarm("held_out", spec.name, symptom, pairs[best + 1][0], pairs[-1][0], pairs[best][1], after, fall / unit)
        )
    return worse


FAST: Final = 8
"""Maximum readings from onset to alarm for a jump. At 4 standard deviations per reading it takes five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauge:
    """A metric, by name or pattern, and the symptoms of its changes. An empty symptom means none."""

    metric: str
    up: str = ""
    down: str = ""
    jump: str = ""
    """Replaces `up` if the change was fast."""
    size: float = 2.0
    """Minimum change, in standard deviations of one reading."""
    factor: float = 1.0
    """Minimum ratio of the larger level to the smaller."""
    by: float = 0.0
    """Minimum difference of the levels, in the metric's unit."""
    slow: bool = False
    """Whether to also run the Page-Hinkley test, which finds drifts that CUSUM's level follows."""


GAUGES: Final = (
    Gauge(metric="loss", up="loss_creeps_up", jump="loss_spike", size=2.5, factor=1.05, slow=True),
    Gauge(metric="loss", down="loss_drops_suddenly", size=5.0, factor=1.15),
    Gauge(metric="grad_norm", up="grad_norm_growth", size=3.0, factor=1.7),
    Gauge(metric="grad_norm", down="grad_norm_vanishes", size=2.0, factor=3.0),
    Gauge(metric="optim/update_ratio", up="update_ratio_high", down="update_ratio_low", size=3.0, factor=1.6),
    Gauge(metric="optim/weight_norm", up="weight_norm_growth", size=5.0, factor=1.1),
    Gauge(metric="optim/weight_norm", down="weights_shrink", size=5.0, factor=1.05),
    Gauge(metric="optim/grad_momentum_cos", up="gradients_aligned", size=2.0, by=0.25),
    Gauge(metric="optim/grad_momentum_cos", down="gradients_opposed", size=2.0, by=0.25),
    Gauge(metric="reward", down="policy_collapse", size=1.5, factor=1.1),
    Gauge(metric="kl", up="kl_runaway", size=2.5, factor=3.0, by=0.3),
    Gauge(metric="entropy", up="entropy_growth", down="entropy_collapse", size=2.0, factor=1.6),
    Gauge(metric="frac_reward_zero_std", up="zero_advantage_groups", size=2.0, by=0.2),
    Gauge(metric="completions/mean_length", up="length_drift", down="length_shrinks", size=2.0, factor=1.15),
    Gauge(metric="completions/clipped_ratio", up="truncated_completions", size=2.0, by=0.15),
    Gauge(metric="clip_ratio/*", up="clip_saturated", size=2.0, by=0.1),
    Gauge(metric="committee/abstentions", up="judge_outage", size=3.0, by=0.05),
    Gauge(metric="committee/agreement", down="judge_disagreement", size=2.0, by=0.12),
    Gauge(metric="data/repeated", up="data_repeated", size=3.0, by=0.1),
    Gauge(metric="confidence/std", down="confidence_collapse", size=2.0, factor=2.0),
    Gauge(metric="advantage/std", down="zero_advantage_groups", size=2.0, factor=3.0),
    Gauge(metric="calibration/ece", up="calibration_drift", size=3.0, by=0.05),
    Gauge(metric="sampling/*", up="sampling_mismatch", down="sampling_mismatch", size=4.0, by=0.02),
    Gauge(metric="step_time", up="slow_steps", size=3.0, factor=1.3),
    Gauge(metric="frontier/*", up="frontier_drift", size=3.0, factor=1.2),
)
JUDGES: Final = "rewards/*/mean"
"""Metrics to compare with one another: the mean of each reward function."""
LEVELS: Final = "reward/*"
"""Metrics with one difficulty level each."""


def gauges_of(metric: str) -> tuple[Gauge, ...]:
    """Return the gauges of a metric. Most user-defined metrics have none."""
    return tuple(gauge for gauge in GAUGES if gauge.metric == metric or fnmatchcase(metric, gauge.metric))
