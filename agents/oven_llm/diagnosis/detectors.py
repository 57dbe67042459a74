"""Alarms of a run's metrics: what changed for good, when it began, and which symptom of the knowledge graph that is.

Pure and deterministic: the same series give the same alarms, so that an answer that cites one can be held against it.
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
from oven_llm.diagnosis.gauges import FAST, JUDGES, LEVELS, Gauge, gauges_of

Series = tuple[Sequence[int], Sequence[float]]
"""Ticks and readings of one metric, oldest first; what was not measured is left out, what is not finite is not."""
Detector = Literal["cusum", "page_hinkley", "spike", "not_finite", "apart", "held_out", "unexplained"]

SPIKE: Final = 60.0
"""Standard deviations of a single reading above its neighbours' level that make it a spike: gradient norms of healthy
small batches reach 30."""
SPIKE_FACTOR: Final = 40.0
"""And times that level: of a policy's gradient, which may vanish in one step, healthy runs show 30 times."""
UNEXPLAINED: Final = 3.0
"""Times the largest update around it by which the weights' norm changes in a step that no update explains: a step
changes a norm by at most its own length, and decoupled decay adds less than as much again."""
WINDOW: Final = 30
"""Readings before it that its level is taken from."""
CANDIDATES: Final = 8
"""Largest readings that are looked at: a level that has risen for good has more of them, which makes it another
symptom."""
WORSE: Final = 0.03
"""Share of its best reading by which a held-out metric must be worse, twice running: half of what an evaluation of a
few hundred examples varies by."""
TOGETHER: Final = 25
"""Ticks within which two gauges that change are taken to change together."""
JUMP: Final = 3.0
"""Standard deviations by which a judge's mean must jump: what a policy learns shows more slowly."""
APART: Final = 0.05
"""Share of its level that a judge's mean must move for judges to come apart."""
MOST: Final = 64
"""Alarms that are given at most, the strongest: a log of garbage must not fill a model's context."""


@dataclass(frozen=True, slots=True)
class Alarm:
    """A symptom, and where it shows."""

    detector: Detector
    metric: str
    symptom: str
    """A node of the knowledge graph."""
    onset: int
    """Tick at which the change began, as estimated."""
    raised: int
    """Tick at which the detector knew."""
    before: float
    """Level before."""
    after: float
    """Level from the onset to when it was raised."""
    size: float
    """In standard deviations of one reading, at most LARGEST."""

    def plain(self) -> dict[str, Any]:
        """As JSON has it, figures with five digits."""
        return {k: _figure(v) if isinstance(v, float) else v for k, v in asdict(self).items()}


NORM, RATIO = "optim/weight_norm", "optim/update_ratio"
LARGEST: Final = 999.0
"""A gauge that never moved has no noise, and its first change any size."""


def alarms(series: Mapping[str, Series], specs: Sequence[MetricSpec]) -> list[Alarm]:
    """All of them, in the order of their onsets; `specs` are the run's announced metrics. A metric that is not
    announced raises none: it could not be cited."""
    better = {spec.name: spec.better for spec in specs}
    found: list[Alarm] = []
    for name in sorted(better.keys() & series.keys()):
        ticks, values = series[name]
        finite = [place for place, value in enumerate(values) if math.isfinite(value)]
        if len(finite) < len(values):
            found.append(_not_finite(name, ticks, values))
            ticks, values = [ticks[place] for place in finite], [values[place] for place in finite]
        gauges = [gauge for gauge in gauges_of(name) if name != "loss" or better[name] == "down"]
        if gauges:
            found += _lasting(name, gauges, ticks, values)
        if name == "grad_norm":
            found += _spikes(name, ticks, values)
    found += _displaced(series, better)
    found += _apart(series, better)
    found += _held_out(series, specs)
    strongest = sorted(found, key=lambda alarm: (-alarm.size, alarm.onset, alarm.metric))[:MOST]
    return sorted(strongest, key=lambda alarm: (alarm.onset, alarm.metric, alarm.symptom))


def _lasting(name: str, gauges: Sequence[Gauge], ticks: Sequence[int], values: Sequence[float]) -> list[Alarm]:
    changes = cusum(values)
    found: dict[str, Alarm] = {}
    for gauge in gauges:
        slow = [page_hinkley(values, 1)] if gauge.slow and gauge.up else []
        for change in (*changes, *(one for one in slow if one is not None)):
            symptom = _symptom(gauge, change)
            if symptom and (symptom not in found or change.test == "cusum"):
                alarm = _alarm(name, symptom, change, ticks)
                known = found.get(symptom)
                if known is None or alarm.size > known.size:
                    found[symptom] = alarm
    return list(found.values())


def _symptom(gauge: Gauge, change: Change) -> str:
    """Which one it is; empty: the change is too small to be one."""
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
    first = next(place for place, value in enumerate(values) if not math.isfinite(value))
    finite = [value for value in values[:first] if math.isfinite(value)][-WINDOW:]
    before = median(finite) if finite else 0.0
    return Alarm("not_finite", name, "loss_nan", ticks[first], ticks[first], before, before, LARGEST)


def _spikes(name: str, ticks: Sequence[int], values: Sequence[float]) -> list[Alarm]:
    """The largest single reading far above those before it, where there is one."""
    if len(values) <= WINDOW:
        return []
    for place in sorted(range(WINDOW, len(values)), key=lambda at: (-values[at], at))[:CANDIDATES]:
        before = values[place - WINDOW : place]
        level = median(before)
        deviation = max(noise(before), 1e-3 * abs(level), 1e-12)
        size = (values[place] - level) / deviation
        if size >= SPIKE and values[place] >= SPIKE_FACTOR * level:
            return [
                Alarm(
                    "spike",
                    name,
                    "grad_norm_spike",
                    ticks[place],
                    ticks[place],
                    level,
                    values[place],
                    min(size, LARGEST),
                )
            ]
    return []


def _displaced(series: Mapping[str, Series], better: Mapping[str, str]) -> list[Alarm]:
    """The first step in which the weights' norm changed by more than the updates around it account for: something else
    wrote to the weights."""
    if not {NORM, RATIO} <= better.keys() & series.keys():
        return []
    updates = dict(zip(*series[RATIO], strict=True))
    ticks, norms = series[NORM]
    for place in range(WINDOW, len(ticks)):
        tick, before, now = ticks[place], norms[place - 1], norms[place]
        near = [updates[one] for one in (tick - 1, tick, tick + 1) if one in updates]
        if not near or not all(map(math.isfinite, (before, now, *near))) or before <= 0:
            continue
        change, explained = abs(now - before) / before, max(near)
        if explained > 0 and change > UNEXPLAINED * explained:
            size = min(change / explained, LARGEST)
            return [Alarm("unexplained", NORM, "weights_displaced", tick, tick, before, now, size)]
    return []


def _apart(series: Mapping[str, Series], better: Mapping[str, str]) -> list[Alarm]:
    """A judge whose mean jumps while no other's does, and a level that falls while the reward does not."""
    found: list[Alarm] = []
    names = sorted(better.keys() & series.keys())
    judges = {name: _changes(series[name]) for name in names if fnmatchcase(name, JUDGES)}
    jumps = [
        (name, ticks, change)
        for name, made in judges.items()
        for ticks, change in made
        if change.size >= JUMP and change.raised - change.onset < FAST
    ]
    for name, ticks, jump in jumps if len(judges) > 1 else ():
        others = [t[j.onset] for other, t, j in jumps if other != name and j.sign == jump.sign]
        if jump.sign > 0 and not any(abs(one - ticks[jump.onset]) <= TOGETHER for one in others):
            found.append(_alarm(name, "judges_apart", jump, ticks))
            break
    reward = _changes(series["reward"]) if "reward" in names else []
    for name in names:
        if fnmatchcase(name, LEVELS):
            for ticks, fall in _changes(series[name]):
                together = any(r.sign < 0 and abs(t[r.onset] - ticks[fall.onset]) <= TOGETHER for t, r in reward)
                if fall.sign < 0 and not together:
                    found.append(_alarm(name, "level_forgotten", fall, ticks))
                    break
    return found


def _changes(of: Series) -> list[tuple[Sequence[int], Change]]:
    ticks, values = of
    places = [place for place, value in enumerate(values) if math.isfinite(value)]
    if len(places) < len(values):
        ticks, values = [ticks[place] for place in places], [values[place] for place in places]
    return [
        (ticks, change)
        for change in cusum(values)
        if change.size >= 1.5 and abs(change.after - change.before) >= APART * abs(change.before)
    ]


def _held_out(series: Mapping[str, Series], specs: Sequence[MetricSpec]) -> list[Alarm]:
    """Held-out metrics whose last two readings are worse than their best, by more than readings differ by chance. They
    are too few for the other tests."""
    found: list[Alarm] = []
    rewarded = any(spec.name == "reward" for spec in specs)
    for spec in specs:
        if not spec.held_out or spec.better == "neither" or spec.name not in series:
            continue
        sign = 1.0 if spec.better == "up" else -1.0
        ticks, values = series[spec.name]
        pairs = [(tick, value) for tick, value in zip(ticks, values, strict=True) if math.isfinite(value)]
        if len(pairs) < 4:
            continue
        best = max(range(len(pairs) - 2), key=lambda place: sign * pairs[place][1])
        worst_of_last = max(sign * value for _, value in pairs[-2:])
        steps = [abs(b[1] - a[1]) for a, b in pairwise(pairs[: best + 1])]
        unit = max(median(steps) if steps else 0.0, 0.5 * WORSE * abs(pairs[best][1]), 1e-12)
        fall = sign * pairs[best][1] - worst_of_last
        if fall < max(WORSE * abs(pairs[best][1]), unit):
            continue
        symptom = "reward_up_heldout_down" if rewarded else "heldout_loss_rises"
        after = fmean(value for _, value in pairs[-2:])
        found.append(
            Alarm("held_out", spec.name, symptom, pairs[best + 1][0], pairs[-1][0], pairs[best][1], after, fall / unit)
        )
    return found


def _figure(value: float) -> float:
    return float(f"{value:.5g}")
