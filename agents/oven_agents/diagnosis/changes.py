"""Reads lasting changes of the metrics, and alerts of agents, as evidence. A change that follows an applied decision is
the effect of the decision and not a fault."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Final

from oven_agents.diagnosis.detectors import Alarm
from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.rules.curve import (
    PARTIAL,
    Curve,
    held_out_curves,
    most_improved,
    objective_curve,
    show_improvement,
)
from oven_agents.diagnosis.rules.policy import EQUAL_GROUPS
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective
from oven_agents.stats.update_to_weight_ratio import MAX_LENGTH

SYMPTOM_KINDS: Final = {
    "policy_collapse": ("reward_collapse", 0.4),
    "loss_creeps_up": ("diverged", 0.4),
    "loss_spike": ("diverged", 0.4),
    "grad_norm_spike": ("spike_recovered", 0.4),
    "update_ratio_high": ("lr_too_high", 0.55),
    "gradients_opposed": ("lr_too_high", 0.4),
    "gradients_aligned": ("lr_too_low", 0.4),
    "heldout_loss_rises": ("overfit", 0.4),
    "reward_up_heldout_down": ("reward_hacked", 0.4),
    "truncated_completions": ("truncated", 0.6),
    "confidence_collapse": ("confidence_untaught", 0.4),
    "entropy_collapse": ("entropy_collapse", 0.4),
    "kl_runaway": ("kl_runaway", 0.5),
}
"""Symptom of an alarm → the kind of finding, and the weight of the evidence. Other symptoms are kinds of their own."""
HARMLESS: Final = {"update_ratio_high": MAX_LENGTH, "truncated_completions": 0.25}
"""Symptom of an alarm → the level up to which a rise is only a note: steps that are not too long yet, and a share of
completions without which most answers are still rewarded."""
OTHER_WEIGHT: Final = 0.35
"""Weight of other symptoms. Many changes are harmless, so they are only notes."""
UNREMARKABLE: Final = ("loss_drops_suddenly",)
"""Symptoms that only matter together with others. A model that looks for causes still sees them as alarms."""
LASTING_DETECTORS: Final = ("cusum", "page_hinkley")
"""Detectors of lasting changes. In long runs, they also find changes that were only noise, or that soon ended."""
MIN_LASTING_SHARE: Final = 0.5
"""Minimum share of a change that the medians before and after it show."""
EFFECT_TICKS: Final = 40
"""Number of ticks after an applied change in which a metric's change counts as its effect."""
TRADED_OFF: Final = ("precision", "recall")
JUDGES_BOTH: Final = (*TRADED_OFF, "f1")
"""Parts of the names of metrics one of which rises when another falls, and of the metric that combines them."""
MIN_FAR: Final = 0.1
"""Distance from the best reading, as a share of it, that a metric stays away from it if it is worse for good."""
LAST_READINGS: Final = 10
"""Number of readings that give a level of the objective or of the gradient's norm."""
MAX_ALARM_LEAD: Final = 8
"""Number of ticks by which the estimated onset may precede the change that caused it."""


def read_changes(record: RunRecord) -> Iterator[Evidence]:
    """Yield evidence from each alarm, and from each alert of an agent, that no applied change explains."""
    for alarm in record.alarms:
        if not _is_effect(alarm.onset, alarm.raised, record) and (evidence := _read_alarm(alarm, record)):
            yield evidence
    for alert in record.alerts:
        if not _is_effect(alert.tick, alert.tick, record):
            yield _evidence(
                alert.symptom, alert.tick, alert.reason or f"{alert.metric} is {alert.value:.4g}", alert.metric
            )


def _read_alarm(alarm: Alarm, record: RunRecord) -> Evidence | None:
    """Return the evidence of an alarm, or None if it does not matter or a rule on curves judges it."""
    text = f"{alarm.metric} went from {alarm.before:.4g} to {alarm.after:.4g}"
    if alarm.symptom in ("grad_norm_growth", "grad_norm_vanishes"):
        return _lasting_norm(alarm, record) if _lasts(alarm, record) else None
    if alarm.detector == "not_finite" or alarm.symptom in UNREMARKABLE:
        return None
    if alarm.detector == "held_out":
        return _held_out_worse(alarm, record)
    if alarm.detector == "spike":
        return (
            _evidence(alarm.symptom, alarm.onset, f"{text} and came back", alarm.metric)
            if _healed(alarm, record)
            else None
        )
    if alarm.detector in LASTING_DETECTORS and not _lasts(alarm, record):
        return None
    if alarm.after <= HARMLESS.get(alarm.symptom, -math.inf):
        return Evidence(alarm.symptom, OTHER_WEIGHT, alarm.onset, text, metric=alarm.metric)
    return _evidence(alarm.symptom, alarm.onset, text, alarm.metric)


def _evidence(symptom: str, tick: int, text: str, metric: str) -> Evidence:
    kind, weight = SYMPTOM_KINDS.get(symptom, (symptom, OTHER_WEIGHT))
    return Evidence(kind, weight, tick, text, metric=metric)


def _held_out_worse(alarm: Alarm, record: RunRecord) -> Evidence | None:
    """Return the evidence that a held-out metric is worse than its best reading, or None if a metric of the task has
    improved since, or if it is one side of a trade-off between precision and recall."""
    metric = alarm.metric
    curve = next((curve for curve in held_out_curves(record) if curve.name == metric), None)
    if curve is None or _is_traded_off(metric, record):
        return None
    best = curve.ticks.index(alarm.onset) - 1
    best_tick, best_step = curve.ticks[best], record.step_at(curve.ticks[best])
    since = curve.values[best + 1 :]
    is_lasting = len(since) >= MIN_LASTING_SHARE * len(curve.values)
    stays_worse = is_lasting and min(since) - curve.values[best] >= MIN_FAR * abs(curve.values[best])
    better = next((task for task in _task_curves(record, metric) if _new_best(task, best_tick)), None)
    if better and not stays_worse:
        return None
    low, high = sorted((curve.sign * min(since), curve.sign * max(since)))
    text = (
        f"{metric} is worse than its best ({curve.show(curve.values[best])} at step {best_step:,}; "
        f"since then {low:.4g} to {high:.4g})"
    )
    if improved := better or most_improved(record, best_tick):
        text += f". {show_improvement(improved, best_tick, record)}"
    remedy = (
        f"if the run has ended, use the checkpoint of step {best_step:,}; if it continues, go back to it "
        "only if the next three evaluations are worse, too"
    )
    if stays_worse:
        remedy = f"use the checkpoint of step {best_step:,}, whose {metric} is the best"
        if better:
            best_better_step = record.step_at(better.best_tick)
            use = f"use its best checkpoint (step {best_better_step:,})"
            remedy = f"if {better.name} is what matters, {use}; otherwise {remedy}"
    return Evidence("held_out_worse", OTHER_WEIGHT, alarm.onset, text, metric=metric, remedy=remedy)


def _is_traded_off(metric: str, record: RunRecord) -> bool:
    """Return whether the metric is a precision or recall whose counterpart, or F1, is not worse than its best, too."""
    if not any(word in metric.lower() for word in TRADED_OFF):
        return False
    worse = {alarm.metric for alarm in record.alarms if alarm.detector == "held_out"}
    others = [name for name in record.series if name != metric and any(word in name.lower() for word in JUDGES_BOTH)]
    return any(name not in worse for name in others)


def _task_curves(record: RunRecord, metric: str) -> Iterator[Curve]:
    """Yield the held-out metrics of the task other than this one."""
    for curve in held_out_curves(record):
        if curve.name != metric and not any(word in curve.name for word in PARTIAL):
            yield curve


def _new_best(curve: Curve, tick: int) -> bool:
    """Return whether a metric is better at some time after the tick than at any time before."""
    before, after = curve.split(tick)
    return bool(before and after) and min(after) < min(before)


def _lasting_norm(alarm: Alarm, record: RunRecord) -> Evidence | None:
    """Return the evidence of a gradient norm that changed for good, or None if it came back while the run improved."""
    metric, step = alarm.metric, record.step_at(alarm.onset)
    norms = record.values(metric, first=alarm.onset)
    before, after = median(record.values(metric, end=alarm.onset)), median(norms)
    costs_before, costs_after = objective_curve(record).split(alarm.onset - 1)
    improves = bool(costs_before and costs_after) and median(costs_after[-LAST_READINGS:]) < median(
        costs_before[-LAST_READINGS:]
    )
    levels = [median(norms[max(0, end - LAST_READINGS) : end]) for end in range(len(norms), 0, -LAST_READINGS)]
    farthest = max(abs(level - alarm.before) for level in levels)
    if improves and abs(levels[0] - alarm.before) <= MIN_LASTING_SHARE * farthest:
        return None
    name = objective(record.started).name
    trend = f" while the {name} improved" if improves else ""
    text = f"{metric} went from {before:.3g} to {after:.3g} (medians before and since step {step:,}){trend}"
    if alarm.symptom == "grad_norm_growth":
        remedy = (
            f"no action needed while the {name} improves; if it gets worse, or the norm passes {3 * after:.2g}, clip "
            f"at {after:.2g} (max_grad_norm) or halve the learning rate"
        )
        return Evidence(alarm.symptom, OTHER_WEIGHT, alarm.onset, text, metric=metric, remedy=remedy)
    zeros, remedy = norms.count(0), ""
    if zeros:
        text = f"{metric} is exactly 0 in {zeros} of {len(norms)} readings since step {step:,}"
    if zeros and (groups := record.values(EQUAL_GROUPS, first=alarm.onset)):
        text += (
            f". In {median(groups):.0%} of the groups, all completions get the same reward ({EQUAL_GROUPS}), so they "
            "give no gradient"
        )
        remedy = "raise num_generations or the sampling temperature, or drop prompts whose rewards are all equal"
    return Evidence(alarm.symptom, OTHER_WEIGHT, alarm.onset, text, metric=metric, remedy=remedy)


def _healed(alarm: Alarm, record: RunRecord) -> bool:
    """Return whether most of the readings after a spike are closer to the level before it than to the spike."""
    after = record.values(alarm.metric, first=alarm.onset + 1)
    return bool(after) and median(after) < (alarm.before + alarm.after) / 2


def _lasts(alarm: Alarm, record: RunRecord) -> bool:
    """Return whether the whole runs before and after the onset differ as the alarm says."""
    before, after = record.values(alarm.metric, end=alarm.onset), record.values(alarm.metric, first=alarm.onset)
    if not before or not after:
        return False
    change = alarm.after - alarm.before
    return (median(after) - median(before)) * math.copysign(1, change) >= MIN_LASTING_SHARE * abs(change)


def _is_effect(onset: int, detected: int, record: RunRecord) -> bool:
    """Return whether a knob was changed shortly before the onset, or between onset and detection."""
    return any(onset - EFFECT_TICKS <= tick <= min(detected, onset + MAX_ALARM_LEAD) for tick, _ in record.changes)
