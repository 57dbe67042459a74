"""The guardrails: checks that can reject, limit or advise a change after a successful vote.

Each check returns the reason for rejecting the change, with figures, or an empty string if it accepts the change.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from oven_core.mesh.actuator_values import check_bounds, clip, direction, number, rounded, shares, show, variation
from oven_core.mesh.change_requirements import HELD_OUT, NEED_FORMS, NEED_PATTERN, change_name, covers, is_met
from oven_core.mesh.state import State
from oven_core.mesh.tally import Tally
from oven_core.protocol.actuators import ROLLBACK
from oven_core.protocol.messages import ActuatorSpec, Value
from oven_core.protocol.rules import Rules

BUDGET_SPENT: Final = "budget spent"
"""Prefix of the rejection reason when the intervention budget is used up."""
MAX_LEARNER_REJECTIONS = 2
"""Number of consecutive changes of one actuator that the learner may reject before the mesh adopts no more of them.

Retries can fail forever, for example if the training loop overrides the learning rate. A successful `set` by a person
resets the count."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The verdict of the guardrails on a change."""

    verdict: Literal["adopted", "rejected", "advised"]
    value: Value
    note: str
    """The reason for rejecting, limiting or advising the change; empty if there is none."""


def judge_change(state: State, spec: ActuatorSpec, tally: Tally, adopted_with: Sequence[str] = ()) -> Ruling:
    """Return the verdict of the guardrails on a change that passed the vote.

    The size is limited first, so that the checks judge the value that would be set. The first check that fails decides.
    A change that passes all checks is advised if autonomy is `advise`, or if a person has to approve it.
    `adopted_with` lists the changes that are adopted together with this one."""
    before = state.effective.get(spec.name)
    value, limit_note = limit_change(spec, before, tally.value, state.rules, only_small=tally.only_small)
    rejection = (
        check_requirements(state, spec, tally.direction)
        or _check_autonomy(state, spec, value)
        or _check_no_change(state, spec, before, value)
        or _check_pending_advice(state, spec, value, tally.only_newcomers)
        or _check_learner_rejections(state, spec)
        or _check_cooldown(state, spec)
        or check_repeated_rollback(state, spec, value)
        or _check_budget(state, spec, len(adopted_with))
        or check_contradictions(state, spec, tally.direction, adopted_with)
    )
    if rejection:
        return Ruling("rejected", value, rejection)
    approval_reason = _approval_reason(state, spec, tally)
    if approval_reason or state.autonomy_for(spec.name) == "advise":
        return Ruling("advised", value, "; ".join(note for note in (limit_note, approval_reason) if note))
    return Ruling("adopted", value, limit_note)


def _approval_reason(state: State, spec: ActuatorSpec, tally: Tally) -> str:
    """Return why a person has to approve the change regardless of autonomy, or an empty string."""
    if tally.only_newcomers:
        proposers = [line.agent for line in tally.lines if line.newcomer and line.stance == "propose"]
        names = clip(", ".join(proposers), 200)
        command = f"oven-controller trust {names.split(', ')[0]} {spec.name}"
        suspensions = [state.vote_limits.suspension(name, spec.name) for name in proposers]
        causes = "".join(f"; {suspension}" for suspension in suspensions if suspension)
        return f"only untrusted agents propose it ({names}{clip(causes, 400)}): run `{command}` to count its votes"
    return state.vote_limits.frozen_reason(spec.name, state.rules)


def check_approval(state: State, spec: ActuatorSpec, value: Value) -> str:
    """Return why an operator cannot approve this advised value now, or an empty string if they can.

    Autonomy, the cool-down and the maximum change size are not checked, because the operator decides."""
    before = state.effective.get(spec.name)
    new_direction = direction(before, value)
    return (
        check_requirements(state, spec, new_direction)
        or _check_no_change(state, spec, before, value)
        or _check_budget(state, spec)
        or check_contradictions(state, spec, new_direction)
    )


def check_repeated_rollback(state: State, spec: ActuatorSpec, value: Value) -> str:
    """Return why a rollback to this tick may not be repeated (oven_core.mesh.limits), or an empty string if it may."""
    tick = number(value)
    if spec.name != ROLLBACK or tick is None:
        return ""
    return state.rollback_limits.refusal_reason(int(tick))


def limit_change(
    spec: ActuatorSpec, before: Value, value: Value, rules: Rules, *, only_small: bool = False
) -> tuple[Value, str]:
    """Return `value` limited to the maximum change size, or to a small change, and a note if it was limited.

    Bounds take precedence, so a value from outside the bounds may move further than the maximum to get inside."""
    if spec.kind == "simplex":
        return _limit_shares(spec, shares(before), shares(value), rules.small_shift if only_small else rules.max_shift)
    old, new = number(before), number(value)
    if spec.kind != "scalar" or old is None or new is None:
        return value, ""
    if spec.scale == "log":
        factor = rules.small_factor if only_small else rules.max_factor
        low, high = old / factor, old * factor
        max_text = f"a factor of {factor:.3g}"
    elif spec.low is not None and spec.high is not None:
        fraction = rules.small_fraction if only_small else rules.max_fraction
        max_step = fraction * (spec.high - spec.low)
        low, high = old - max_step, old + max_step
        max_text = f"{fraction:.3g} of the range {show(spec.low)} to {show(spec.high)}"
    else:
        return value, ""
    limited = min(max(new, low), high)
    if spec.low is not None:
        limited = max(limited, spec.low)
    if spec.high is not None:
        limited = min(limited, spec.high)
    limited = rounded(limited)
    if limited == new:
        return value, ""
    return limited, f"limited to {show(limited)}, {max_text} from {show(old)}, instead of {show(new)}"


def _limit_shares(
    spec: ActuatorSpec, before: dict[str, float], value: dict[str, float], max_shift: float
) -> tuple[Value, str]:
    shift = variation(value, before) if before else 0.0
    if shift <= max_shift:
        return value, ""
    fraction = max_shift / shift
    limited: dict[str, float] = {
        name: rounded(before[name] + fraction * (share - before[name])) for name, share in value.items()
    }
    if check_bounds(spec, limited) is not None:
        return value, ""
    return limited, f"limited to {show(limited)}, a shift of {max_shift:.3g} instead of {shift:.3g}"


def check_requirements(state: State, spec: ActuatorSpec, new_direction: str) -> str:
    """Return a message about the first unmet requirement of this change, or an empty string."""
    for change, need in state.rules.requires:
        if not covers(change, change_name(spec.name, new_direction)):
            continue
        metrics = [metric.name for metric in state.metrics]
        if not is_met(need, state.specs, metrics, any(metric.held_out for metric in state.metrics)):
            return f"unmet: {clip(change, 120)} needs {_describe_missing(need)}"
    return ""


def _describe_missing(need: str) -> str:
    """Describe an unmet need, or state that its form is invalid."""
    if not NEED_PATTERN.fullmatch(need):
        return f"{clip(need, 120)!r}, which cannot be verified: use {NEED_FORMS} in rules.requires"
    kind, _, name = need.partition(":")
    feature = "a held-out metric" if need == HELD_OUT else f"the {kind} {clip(name, 120)}"
    return f"{feature} ({clip(need, 120)}), but the learner announces none"


def _check_autonomy(state: State, spec: ActuatorSpec, value: Value) -> str:
    if state.autonomy_for(spec.name) != "observe":
        return ""
    action = f"run {spec.name}" if value is None else f"set {show(value)}"
    return f"observe: would have {action}; run `oven-controller autonomy auto {spec.name}` to allow it"


def _check_no_change(state: State, spec: ActuatorSpec, before: Value, value: Value) -> str:
    for pending in state.changes_in_flight():
        if pending.decision.actuator == spec.name and pending.decision.value == value:
            return f"already in flight: decision {pending.decision.id} has no receipt yet"
    if spec.kind == "action" or before is None:
        return ""
    min_change = state.rules.least_change
    old, new = number(before), number(value)
    if old is not None and new is not None:
        change = _relative_change(old, new)
    elif spec.kind == "simplex":
        change = variation(shares(value), shares(before))
    else:
        return f"no change: {spec.name} is already {show(before)}" if value == before else ""
    if value != before and change >= min_change:
        return ""
    comparison = f"a change of {change:.3g}, below the minimum of {min_change:.3g}"
    return f"no change: from {show(before)} to {show(value)} is {comparison}"


def _relative_change(old: float, new: float) -> float:
    if old == 0:
        return 0.0 if new == 0 else math.inf
    return abs(new - old) / abs(old)


def _check_pending_advice(state: State, spec: ActuatorSpec, value: Value, only_newcomers: bool) -> str:
    """Return why pending advice blocks a change, or an empty string.

    The same advice is not repeated, because only its id would change. Newcomers' advice never replaces older advice."""
    older = state.advised.get(spec.name)
    if older is None or state.tick > older.expires_at_tick or (older.value != value and not only_newcomers):
        return ""
    is_frozen = bool(state.vote_limits.frozen_reason(spec.name, state.rules))
    becomes_advice = only_newcomers or is_frozen or state.autonomy_for(spec.name) == "advise"
    if not becomes_advice:
        return ""
    return f"already advised: decision {older.id} is awaiting approval until tick {older.expires_at_tick}"


def _check_learner_rejections(state: State, spec: ActuatorSpec) -> str:
    reasons = state.learner_rejections.get(spec.name, [])
    if len(reasons) < MAX_LEARNER_REJECTIONS:
        return ""
    cause = clip(reasons[-1], 400) or "no reason given"
    return f"the learner rejected the last {len(reasons)} changes of {spec.name}: {cause}"


def _check_cooldown(state: State, spec: ActuatorSpec) -> str:
    last = state.cooldown_starts.get(spec.name)
    if last is None or state.tick - last >= state.rules.cooldown_ticks:
        return ""
    ticks, required_ticks = state.tick - last, state.rules.cooldown_ticks
    return f"cooling down: {ticks} ticks since the last change of {spec.name}, {required_ticks} required"


def _check_budget(state: State, spec: ActuatorSpec, uncounted_changes: int = 0) -> str:
    """Check the budget. `uncounted_changes` is the number of changes adopted with this one but not yet counted."""
    if state.interventions + uncounted_changes < state.rules.max_interventions or not spec.intervenes:
        return ""
    return f"{BUDGET_SPENT}: {state.interventions} of {state.rules.max_interventions} interventions used"


def check_contradictions(state: State, spec: ActuatorSpec, new_direction: str, adopted_with: Sequence[str] = ()) -> str:
    """Return the contradiction with a change in flight or adopted with this one, or an empty string."""
    change = change_name(spec.name, new_direction)
    contradictions = [
        (own_pattern, opposite)
        for first, second in state.rules.contradictions
        for own_pattern, opposite in ((first, second), (second, first))
        if covers(own_pattern, change)
    ]
    for _, opposite in contradictions:
        if any(covers(opposite, adopted) for adopted in adopted_with):
            return f"contradiction: {opposite} is part of the same plan"
    for pending in state.changes_in_flight():
        for own_pattern, opposite in contradictions:
            if covers(opposite, pending.change):
                return (
                    f"contradiction: {opposite} is in flight (decision {pending.decision.id}), {own_pattern} must wait"
                )
    return ""
