"""Reads lasting changes of the metrics, and alerts of agents, as evidence. A change that follows an applied decision is
the effect of the decision and not a fault."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median
from typing import Final

from oven_agents.diagnosis.detectors import Alarm
from oven_agents.diagnosis.finding import Evidence
from oven_agents.diagnosis.run_record import RunRecord
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
    if alarm.detector == "not_finite" or alarm.symptom in UNREMARKABLE:
        return None
    if alarm.detector == "held_out":
        return Evidence("held_out_worse", OTHER_WEIGHT, alarm.onset, text, metric=alarm.metric)
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
