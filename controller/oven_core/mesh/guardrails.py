"""Guardrails that can reject a change after a successful vote. Each returns a reason with figures, or ""."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from oven_core.mesh.actuator_values import clip, direction, number, outside, rounded, shares, show, variation
from oven_core.mesh.change_requirements import FORMS, HELD_OUT, NEED, change_name, covers, is_met
from oven_core.mesh.state import State
from oven_core.mesh.tally import Tally
from oven_core.protocol.actuator_names import ROLLBACK
from oven_core.protocol.messages import ActuatorSpec, Value
from oven_core.protocol.rules import Rules

SPENT: Final = "budget spent"
"""Start of the reason if the budget of interventions prevents a change."""
TURNED_DOWN = 2
"""Maximum consecutive changes of one actuator that the learner may reject before the mesh adopts no more. For example,
if the loop sets a rate itself, the next change would fail too. An applied `set` by a person resets the count."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """The guardrails' verdict on a change."""

    verdict: Literal["adopted", "rejected", "advised"]
    value: Value
    note: str
    """The reason if a guardrail rejected or limited it; empty if none did."""


def rule(state: State, spec: ActuatorSpec, tally: Tally, adopted_with: Sequence[str] = ()) -> Ruling:
    """Return the verdict on a change that passed the vote.

    The size is limited first, so that every other guardrail judges the value that would be set. Then, in this order:
    needs, autonomy, no change, waiting advice, rejections by the learner, cool-down, repeated rollbacks, budget,
    contradictions. A change that passes all of them is advised if autonomy says so. `adopted_with` has changes adopted
    together with this one.
    """
    before = state.effective.get(spec.name)
    value, limited = limit(spec, before, tally.value, state.rules)
    note = (
        unmet(state, spec, tally.direction)
        or _observed(state, spec, value)
        or _unchanged(state, spec, before, value)
        or _waiting(state, spec, value, tally.newcomers)
        or _turned_down(state, spec)
        or _cooling(state, spec)
        or repeated(state, spec, value)
        or _spent(state, spec, len(adopted_with))
        or contradicted(state, spec, tally.direction, adopted_with)
    )
    if note:
        return Ruling("rejected", value, note)
    question = _for_a_person(state, spec, tally)
    if question or state.autonomy_for(spec.name) == "advise":
        return Ruling("advised", value, "; ".join(note for note in (limited, question) if note))
    return Ruling("adopted", value, limited)


def _for_a_person(state: State, spec: ActuatorSpec, tally: Tally) -> str:
    """Return why a person has to approve although autonomy does not require it; empty if no approval is needed."""
    if tally.newcomers:
        backing = (line for line in tally.lines if line.newcomer and line.stance in ("propose", "for"))
        names = clip(", ".join(line.agent for line in backing), 200)
        first = names.split(", ")[0]
        return f"newcomers alone are for it ({names}): `oven-controller trust {first} {spec.name}` lets it"
    return state.vote_limits.frozen_reason(spec.name, state.rules)


def barred(state: State, spec: ActuatorSpec, value: Value) -> str:
    """Return what prevents an advised value from being approved now; empty if nothing does. Autonomy does not count,
    because the operator decides; nor the cool-down, which the advice itself began; nor the largest change."""
    before = state.effective.get(spec.name)
    new_direction = direction(before, value)
    return (
        unmet(state, spec, new_direction)
        or _unchanged(state, spec, before, value)
        or _spent(state, spec)
        or contradicted(state, spec, new_direction)
    )


def repeated(state: State, spec: ActuatorSpec, value: Value) -> str:
    """Return why a rollback there may not be repeated (oven_core.mesh.limits); empty if it may."""
    tick = number(value)
    if spec.name != ROLLBACK or tick is None:
        return ""
    return state.rollback_limits.barred(int(tick))


def limit(spec: ActuatorSpec, before: Value, value: Value, rules: Rules) -> tuple[Value, str]:
    """Return `value` limited to the largest change, and a note if that moved it. Bounds outrank the largest change: if
    the effective value lies outside them, the step back inside may be larger."""
    if spec.kind == "simplex":
        return _limit_shares(spec, shares(before), shares(value), rules.max_shift)
    old, new = number(before), number(value)
    if spec.kind != "scalar" or old is None or new is None:
        return value, ""
    if spec.scale == "log":
        low, high = old / rules.max_factor, old * rules.max_factor
        size = f"a factor of {rules.max_factor:.3g}"
    elif spec.low is not None and spec.high is not None:
        reach = rules.max_fraction * (spec.high - spec.low)
        low, high = old - reach, old + reach
        size = f"{rules.max_fraction:.3g} of the range {show(spec.low)} to {show(spec.high)}"
    else:
        return value, ""
    limited = min(max(new, low), high)
    limited = limited if spec.low is None else max(limited, spec.low)
    limited = rounded(limited if spec.high is None else min(limited, spec.high))
    if limited == new:
        return value, ""
    return limited, f"limited to {show(limited)}, {size} from {show(old)}, instead of {show(new)}"


def _limit_shares(
    spec: ActuatorSpec, before: dict[str, float], value: dict[str, float], most: float
) -> tuple[Value, str]:
    moved = variation(value, before) if before else 0.0
    if moved <= most:
        return value, ""
    part = most / moved
    limited: dict[str, float] = {
        name: rounded(before[name] + part * (share - before[name])) for name, share in value.items()
    }
    if outside(spec, limited) is not None:
        return value, ""
    return limited, f"limited to {show(limited)}, a shift of {most:.3g} where {moved:.3g} was asked for"


def unmet(state: State, spec: ActuatorSpec, direction: str) -> str:
    """Return the need of a change that the run does not meet, according to the announcement; empty if it meets all."""
    for change, need in state.rules.requires:
        if not covers(change, change_name(spec.name, direction)):
            continue
        metrics = [metric.name for metric in state.metrics]
        if not is_met(need, state.specs, metrics, any(metric.held_out for metric in state.metrics)):
            return f"unmet: {clip(change, 120)} needs {_lack(need)}"
    return ""


def _lack(need: str) -> str:
    """Describe an unmet need."""
    if not NEED.fullmatch(need):
        return f"{clip(need, 120)!r}, which nobody can check: write {FORMS} in rules.requires"
    kind, _, name = need.partition(":")
    what = "a held-out metric" if need == HELD_OUT else f"the {kind} {clip(name, 120)}"
    return f"{what} ({clip(need, 120)}), and the learner announces none"


def _observed(state: State, spec: ActuatorSpec, value: Value) -> str:
    if state.autonomy_for(spec.name) != "observe":
        return ""
    what = f"done {spec.name}" if value is None else f"set {show(value)}"
    return f"observe: would have {what}; `oven-controller autonomy auto {spec.name}` lets it"


def _unchanged(state: State, spec: ActuatorSpec, before: Value, value: Value) -> str:
    for flight in state.flying():
        if flight.decision.actuator == spec.name and flight.decision.value == value:
            return f"already on its way: decision {flight.decision.id} has no receipt yet"
    if spec.kind == "action" or before is None:
        return ""
    least = state.rules.least_change
    old, new = number(before), number(value)
    if old is not None and new is not None:
        change = 0.0 if new == old else abs(new - old) / abs(old) if old else math.inf
    elif spec.kind == "simplex":
        change = variation(shares(value), shares(before))
    else:
        return f"no change: {spec.name} is {show(before)} already" if value == before else ""
    if value != before and change >= least:
        return ""
    return f"no change: {show(value)} against {show(before)} is a change of {change:.3g}, below {least:.3g}"


def _waiting(state: State, spec: ActuatorSpec, value: Value, newcomers: bool) -> str:
    """Whether older advice is pending. Repeating it would only replace its id. Newcomers' advice replaces none."""
    older = state.advised.get(spec.name)
    if older is None or state.tick > older.expires_at_tick or (older.value != value and not newcomers):
        return ""
    frozen = state.vote_limits.frozen_reason(spec.name, state.rules)
    if state.autonomy_for(spec.name) != "advise" and not newcomers and not frozen:
        return ""
    return f"already advised: decision {older.id} waits for approval until tick {older.expires_at_tick}"


def _turned_down(state: State, spec: ActuatorSpec) -> str:
    reasons = state.turned_down.get(spec.name, [])
    if len(reasons) < TURNED_DOWN:
        return ""
    cause = clip(reasons[-1], 400) or "without a reason"
    return f"the learner rejected the last {len(reasons)} changes of {spec.name}: {cause}"


def _cooling(state: State, spec: ActuatorSpec) -> str:
    last = state.decided_tick.get(spec.name)
    if last is None or state.tick - last >= state.rules.cooldown_ticks:
        return ""
    since, need = state.tick - last, state.rules.cooldown_ticks
    return f"cooling down: {since} ticks since the last change of {spec.name}, {need} are needed"


def _spent(state: State, spec: ActuatorSpec, more: int = 0) -> str:
    """`more`: changes adopted together with this one that are not counted yet."""
    if state.adopted + more < state.rules.max_interventions or not spec.intervenes:
        return ""
    return f"{SPENT}: {state.adopted} of {state.rules.max_interventions} interventions are used up"


def contradicted(state: State, spec: ActuatorSpec, direction: str, adopted_with: Sequence[str] = ()) -> str:
    """Return the change in flight, or adopted together with this one, that contradicts it; empty if none does."""
    change = change_name(spec.name, direction)
    for pair in state.rules.contradictions:
        for mine, theirs in (pair, pair[::-1]):
            if covers(mine, change) and any(covers(theirs, adopted) for adopted in adopted_with):
                return f"contradiction: {theirs} is part of the same plan"
    for flight in state.flying():
        for pair in state.rules.contradictions:
            for mine, theirs in (pair, pair[::-1]):
                if covers(mine, change) and covers(theirs, flight.change):
                    return f"contradiction: {theirs} is in flight (decision {flight.decision.id}), {mine} must wait"
    return ""
