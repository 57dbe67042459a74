"""Guardrails: limits on a tally that passed. Each answers with a sentence that has its figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from oven_core.mesh.actuator_values import clip, direction, number, outside, rounded, shares, show, variation
from oven_core.mesh.change_requirements import FORMS, HELD_OUT, NEED, covers, met, spelt
from oven_core.mesh.state import State
from oven_core.mesh.tally import Tally
from oven_core.protocol.actions import ROLLBACK
from oven_core.protocol.messages import ActuatorSpec, Value
from oven_core.protocol.rules import Rules

SPENT: Final = "budget spent"
"""How the reason begins of what the budget of interventions keeps from being done."""
TURNED_DOWN = 2
"""Changes of one actuator that the learner may reject in a row before no more is adopted: what it cannot set (a rate
that the loop sets itself) it cannot set the next time either. A person's `set` that is applied ends it."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """`note` is empty where no guardrail had anything to say."""

    verdict: Literal["adopted", "rejected", "advised"]
    value: Value
    note: str


def rule(state: State, spec: ActuatorSpec, tally: Tally, beside: Sequence[str] = ()) -> Ruling:
    """In this order: needs, autonomy, no change, what the learner rejected, cool-down, rollbacks that led nowhere,
    budget, contradictions. The size is limited first, so that each of them judges the value that would be set.
    What passes them all is advised where autonomy says so. `beside` has the changes that are about to be adopted
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
        or _spent(state, spec, len(beside))
        or contradicted(state, spec, tally.direction, beside)
    )
    if note:
        return Ruling("rejected", value, note)
    asked = _for_a_person(state, spec, tally)
    if asked or state.autonomy_for(spec.name) == "advise":
        return Ruling("advised", value, "; ".join(note for note in (limited, asked) if note))
    return Ruling("adopted", value, limited)


def _for_a_person(state: State, spec: ActuatorSpec, tally: Tally) -> str:
    """Why a person is asked although autonomy does not say so; empty if none is."""
    if tally.newcomers:
        backing = (line for line in tally.lines if line.newcomer and line.stance in ("propose", "for"))
        who = clip(", ".join(line.agent for line in backing), 200)
        return f"newcomers alone are for it ({who}): `oven-controller trust {who.split(', ')[0]} {spec.name}` lets it"
    return state.rate_limits.frozen(spec.name, state.rules)


def barred(state: State, spec: ActuatorSpec, value: Value) -> str:
    """What stands against an advised value at the time when it is approved; empty if nothing does. Neither autonomy,
    which the operator's word replaces, nor the cool-down, which the advice itself began, nor the largest change."""
    before = state.effective.get(spec.name)
    way = direction(before, value)
    return (
        unmet(state, spec, way)
        or _unchanged(state, spec, before, value)
        or _spent(state, spec)
        or contradicted(state, spec, way)
    )


def repeated(state: State, spec: ActuatorSpec, value: Value) -> str:
    """Whether going back there has been tried often enough, or did harm (oven_core.mesh.rollback_limits)."""
    asked = number(value)
    if spec.name != ROLLBACK or asked is None:
        return ""
    return state.rollback_limits.barred(int(asked))


def limit(spec: ActuatorSpec, before: Value, value: Value, rules: Rules) -> tuple[Value, str]:
    """`value` brought within the largest change, and a note if that moved it. Bounds outrank the largest change: where
    the effective value itself lies outside them, the way back in may be longer than one step.
    """
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
    """Held against what the learner announced, so that the log alone decides it."""
    for change, need in state.rules.requires:
        if not covers(change, spelt(spec.name, direction)):
            continue
        metrics = [metric.name for metric in state.metrics]
        if not met(need, state.specs, metrics, any(metric.held_out for metric in state.metrics)):
            return f"unmet: {clip(change, 120)} needs {_lack(need)}"
    return ""


def _lack(need: str) -> str:
    """A need that is not met, in words."""
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
    """The same advice again would only take the older one's id away from anyone who is about to approve it; and what
    newcomers advise takes no one's."""
    older = state.advised.get(spec.name)
    if older is None or state.tick > older.expires_at_tick or (older.value != value and not newcomers):
        return ""
    frozen = state.rate_limits.frozen(spec.name, state.rules)
    if state.autonomy_for(spec.name) != "advise" and not newcomers and not frozen:
        return ""
    return f"already advised: decision {older.id} waits for approval until tick {older.expires_at_tick}"


def _turned_down(state: State, spec: ActuatorSpec) -> str:
    reasons = state.turned_down.get(spec.name, [])
    if len(reasons) < TURNED_DOWN:
        return ""
    why = clip(reasons[-1], 400) or "without a reason"
    return f"the learner rejected the last {len(reasons)} changes of {spec.name}: {why}"


def _cooling(state: State, spec: ActuatorSpec) -> str:
    last = state.decided_tick.get(spec.name)
    if last is None or state.tick - last >= state.rules.cooldown_ticks:
        return ""
    since, need = state.tick - last, state.rules.cooldown_ticks
    return f"cooling down: {since} ticks since the last change of {spec.name}, {need} are needed"


def _spent(state: State, spec: ActuatorSpec, more: int = 0) -> str:
    """`more`: adopted together with this one, and not counted yet."""
    if state.adopted + more < state.rules.max_interventions or not spec.intervenes:
        return ""
    return f"{SPENT}: {state.adopted} of {state.rules.max_interventions} interventions are used up"


def contradicted(state: State, spec: ActuatorSpec, direction: str, beside: Sequence[str] = ()) -> str:
    change = spelt(spec.name, direction)
    for pair in state.rules.contradictions:
        for mine, theirs in (pair, pair[::-1]):
            if covers(mine, change) and any(covers(theirs, other) for other in beside):
                return f"contradiction: {theirs} is part of the same plan"
    for flight in state.flying():
        for pair in state.rules.contradictions:
            for mine, theirs in (pair, pair[::-1]):
                if covers(mine, change) and covers(theirs, flight.change):
                    return f"contradiction: {theirs} is in flight (decision {flight.decision.id}), {mine} must wait"
    return ""
