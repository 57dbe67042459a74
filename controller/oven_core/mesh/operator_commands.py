"""Handle operators' commands: approve, veto, set, mute, trust and autonomy. Each command gets one answer.

An operator overrides the limits on agents (autonomy, quorum, cool-down, budget, largest change), but never the
announced bounds. `hold`, `resume` and `stop` go to the learner without the mesh. Its receipt answers them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oven_core.mesh.actuator_values import Fault, clip, direction, outside, shaped, show
from oven_core.mesh.ballots import Ballot
from oven_core.mesh.guardrails import barred, contradicted, unmet
from oven_core.mesh.state import State
from oven_core.protocol.messages import ActuatorSpec, Decision, Value
from oven_core.protocol.operator_messages import TO_LEARNER, OperatorCommand
from oven_core.protocol.rules import ALL


@dataclass(frozen=True, slots=True)
class Adoption:
    """A decision that an operator's command requests."""

    spec: ActuatorSpec
    value: Value
    reason: str
    advised: Decision | None = None
    """The advice that it approves."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a command, and its effects."""

    done: bool
    reason: str
    adopts: Adoption | None = None
    closes: str = ""
    """The actuator whose open ballot is rejected; empty for none."""
    close_reason: str = ""


def respond(state: State, ballots: Mapping[str, Ballot], name: str, command: OperatorCommand) -> Reply | None:
    """Return the reply to a command of operator `name`, and apply it to `state`; None if the learner answers it.

    `ballots` has the open ballot of each actuator. Never raises, whatever the command contains.
    """
    if command.action in TO_LEARNER:
        return None
    if not state.started or state.ended:
        when = "has ended" if state.ended else "has not started"
        return Reply(False, f"the run {when}: there is nothing to {command.action}; give the command while it runs")
    operator = f"operator {name}"
    match command.action:
        case "approve":
            return _approve(state, operator, command)
        case "veto":
            return _veto(state, ballots, operator, command)
        case "set":
            return _set(state, ballots, operator, command)
        case "autonomy":
            return _autonomy(state, command)
        case "trust" | "distrust":
            return _trust(state, command)
    return _mute(state, command.agent, command.action == "mute")


def advice(decision_id: str, ticks: int) -> str:
    """Return the part of an advised decision's reason that tells a person how to act on it."""
    return f"advised: approve with `oven-controller approve {decision_id}`, within {ticks} ticks"


def _approve(state: State, operator: str, command: OperatorCommand) -> Reply:
    """Approve advice. The guardrails are applied again, because the run may have changed since the votes."""
    advised = _advised(state, command)
    if advised is None:
        return Reply(False, _nothing_open(state, command, "approve"))
    decision = f"decision {advised.id} ({_change(advised.actuator, advised.value)})"
    if state.tick > advised.expires_at_tick:
        ago, limit = state.tick - advised.tick, advised.expires_at_tick - advised.tick
        remedy = "`oven-controller set` does it all the same"
        return Reply(False, f"{decision} has lapsed: it was advised {ago} ticks ago, {limit} are the limit; {remedy}")
    spec = state.specs.get(advised.actuator)
    if spec is None:
        return Reply(False, f"{decision} cannot be carried out: {_unknown_actuator(state, advised.actuator)}")
    value = _fitting(spec, advised.value)
    if isinstance(value, Fault):
        return Reply(False, f"{decision} does not fit any more: {show(advised.value)} for {spec.name}, {value.problem}")
    if note := barred(state, spec, value):
        return Reply(False, f"{decision} is not approved: {note}")
    reason = _because(f"approved by {operator}", command.reason) + f"; {advised.reason}"
    adoption = Adoption(spec, value, reason, advised)
    return Reply(True, f"{decision} is approved", adoption)


def _veto(state: State, ballots: Mapping[str, Ballot], operator: str, command: OperatorCommand) -> Reply:
    target = command.subject_id or command.actuator
    vetoed = _because(f"vetoed by {operator}", command.reason)
    for actuator, ballot in ballots.items():
        if target in (ballot.opened.id, actuator):
            answer = f"ballot {ballot.opened.id} on {actuator} is rejected"
            return Reply(True, answer, closes=actuator, close_reason=vetoed)
    advised = _advised(state, command)
    if advised is None:
        remedy = "; `oven-controller set` sets the value back, or another" if target in state.closed_because else ""
        return Reply(False, _nothing_open(state, command, "veto") + remedy)
    del state.advised[advised.actuator]
    state.closed_because[advised.id] = f"was {vetoed}"
    return Reply(
        True, f"decision {advised.id} ({_change(advised.actuator, advised.value)}) cannot be approved any more"
    )


def _set(state: State, ballots: Mapping[str, Ballot], operator: str, command: OperatorCommand) -> Reply:
    spec = state.specs.get(command.actuator)
    if spec is None:
        return Reply(False, _unknown_actuator(state, command.actuator))
    value = _fitting(spec, command.value)
    if isinstance(value, Fault):
        return Reply(False, f"{show(command.value)} cannot be set for {spec.name}, {value.problem}")
    before = state.effective.get(spec.name)
    new_direction = direction(before, value)
    overridden = "; ".join(
        note for note in (unmet(state, spec, new_direction), contradicted(state, spec, new_direction)) if note
    )
    done = f"set {_change(spec.name, value)}" if spec.kind != "action" else f"did {_change(spec.name, value)}"
    current = f", now {show(before)}" if before is not None else ""
    reason = f"{operator} {done}{current}" + (f" (overrides {overridden})" if overridden else "")
    answer = done + (f", although {overridden}" if overridden else "")
    adoption = Adoption(spec, value, _because(reason, command.reason))
    state.vote_limits.thaw(spec.name)
    closes = spec.name if spec.name in ballots else ""
    return Reply(True, answer, adoption, closes, f"{operator} set it")


def _autonomy(state: State, command: OperatorCommand) -> Reply:
    level, actuator = command.autonomy, command.actuator
    if level is None:
        return Reply(False, "autonomy needs a level: observe, advise or auto")
    if actuator and actuator not in state.specs:
        return Reply(False, _unknown_actuator(state, actuator))
    if not actuator:
        state.autonomy.clear()
    state.autonomy[actuator] = level
    if level == "auto":
        state.vote_limits.thaw(actuator)
    return Reply(True, f"autonomy of {actuator or 'every actuator'} is {level} from now on")


def _trust(state: State, command: OperatorCommand) -> Reply:
    """Grant or withdraw trust. It outlives the agent's restarts, because only the holder of its key has its name."""
    agent, actuators = command.agent, command.actuators
    if agent not in state.agents:
        remedy = "start it, then trust it"
        return Reply(False, f"no agent {show(agent)} has joined this run; there are {_listed(state.agents)}; {remedy}")
    unknown = next((name for name in actuators if name not in state.specs and name != ALL), None)
    if unknown is not None:
        return Reply(False, _unknown_actuator(state, unknown))
    state.trust.set(agent, actuators, command.action == "trust")
    where = _listed(actuators) if actuators and ALL not in actuators else "every actuator"
    if command.action == "trust":
        return Reply(True, f"agent {agent} is trusted with {where}: its votes carry and veto from the next tally on")
    return Reply(True, f"agent {agent} is on probation with {where}: its votes carry nothing and veto nothing")


def _mute(state: State, agent: str, mute: bool) -> Reply:
    if agent not in state.agents and agent not in state.muted:
        return Reply(False, f"no agent {show(agent)} has joined this run; there are {_listed(state.agents)}")
    if mute:
        state.muted.add(agent)
        return Reply(True, f"agent {agent} is muted: its votes stand in the log and do not count")
    state.muted.discard(agent)
    if not state.shadowed(agent):
        return Reply(True, f"agent {agent} is not muted: its votes count from the next ballot on")
    ruled = agent in state.rules.shadow
    source = "rules.shadow names it" if ruled else "it joined as a shadow"
    remedy = "take it out there and start the learner again" if ruled else "start it without"
    return Reply(False, f"agent {agent} is a shadow all the same: {source}; {remedy}")


def _advised(state: State, command: OperatorCommand) -> Decision | None:
    target = command.subject_id or command.actuator
    return next((advised for advised in state.advised.values() if target in (advised.id, advised.actuator)), None)


def _nothing_open(state: State, command: OperatorCommand, action: str) -> str:
    target = clip(command.subject_id or command.actuator, 128)
    if fate := state.closed_because.get(target):
        return f"decision {target} {fate}: there is nothing left to {action}"
    waiting = [f"{advised.id} on {advised.actuator}" for advised in state.advised.values()]
    what = "advised decision" if action == "approve" else "open ballot and no advised decision"
    return f"there is no {what} {show(target)}; advised are {_listed(waiting)}"


def _fitting(spec: ActuatorSpec, value: Value) -> Value | Fault:
    """Return `value` in the actuator's form and within its bounds, or the fault."""
    fitted = shaped(spec, value)
    return fitted if isinstance(fitted, Fault) else outside(spec, fitted) or fitted


def _change(actuator: str, value: Value) -> str:
    return actuator if value is None else f"{actuator} to {show(value)}"


def _because(sentence: str, reason: str) -> str:
    reason = clip(reason, 400)
    return f"{sentence}: {reason}" if reason else sentence


def _unknown_actuator(state: State, actuator: str) -> str:
    return f"this run has no actuator {show(actuator)}; there are {_listed(state.specs)}"


def _listed(names: Iterable[str]) -> str:
    return clip(", ".join(sorted(names)), 600) or "none"
