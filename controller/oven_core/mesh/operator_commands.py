"""Effects of operators' commands: approve, veto, set, mute, trust, autonomy. Each is answered once.

An operator overrides what agents have to respect (autonomy, quorum, cool-down, budget, largest change), never the
announced bounds. `hold`, `resume` and `stop` are the learner's: they need no mesh, and its receipt answers them.
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
    """A decision to be made on an operator's word. `advised` is the one that it approves."""

    spec: ActuatorSpec
    value: Value
    reason: str
    advised: Decision | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """What becomes of a command. `closes`: the actuator whose open ballot is rejected, `why` with which reason."""

    done: bool
    reason: str
    adopts: Adoption | None = None
    closes: str = ""
    why: str = ""


def respond(state: State, ballots: Mapping[str, Ballot], name: str, command: OperatorCommand) -> Reply | None:
    """The word of operator `name`, taken into `state` as far as it stands there; None where the learner answers it.

    `ballots` holds the open one of each actuator. Never raises, whatever the command holds.
    """
    if command.action in TO_LEARNER:
        return None
    if not state.started or state.ended:
        when = "has ended" if state.ended else "has not started"
        return Reply(False, f"the run {when}: there is nothing to {command.action}; give the command while it runs")
    who = f"operator {name}"
    match command.action:
        case "approve":
            return _approve(state, who, command)
        case "veto":
            return _veto(state, ballots, who, command)
        case "set":
            return _set(state, ballots, who, command)
        case "autonomy":
            return _autonomy(state, command)
        case "trust" | "distrust":
            return _trust(state, command)
    return _mute(state, command.agent, command.action == "mute")


def advice(decision_id: str, ticks: int) -> str:
    """How an advised decision's reason says what a person can do."""
    return f"advised: approve with `oven-controller approve {decision_id}`, within {ticks} ticks"


def _approve(state: State, who: str, command: OperatorCommand) -> Reply:
    """The guardrails are asked again: much may have happened since the votes."""
    advised = _advised(state, command)
    if advised is None:
        return Reply(False, _nothing_open(state, command, "approve"))
    called = f"decision {advised.id} ({_change(advised.actuator, advised.value)})"
    if state.tick > advised.expires_at_tick:
        ago, limit = state.tick - advised.tick, advised.expires_at_tick - advised.tick
        remedy = "`oven-controller set` does it all the same"
        return Reply(False, f"{called} has lapsed: it was advised {ago} ticks ago, {limit} are the limit; {remedy}")
    spec = state.specs.get(advised.actuator)
    if spec is None:
        return Reply(False, f"{called} cannot be carried out: {_unknown_actuator(state, advised.actuator)}")
    value = _fitting(spec, advised.value)
    if isinstance(value, Fault):
        return Reply(False, f"{called} does not fit any more: {show(advised.value)} for {spec.name}, {value.why}")
    if note := barred(state, spec, value):
        return Reply(False, f"{called} is not approved: {note}")
    reason = _because(f"approved by {who}", command.reason) + f"; {advised.reason}"
    adoption = Adoption(spec, value, reason, advised)
    return Reply(True, f"{called} is approved", adoption)


def _veto(state: State, ballots: Mapping[str, Ballot], who: str, command: OperatorCommand) -> Reply:
    wanted = command.of or command.actuator
    why = _because(f"vetoed by {who}", command.reason)
    for actuator, ballot in ballots.items():
        if wanted in (ballot.opened.id, actuator):
            return Reply(True, f"ballot {ballot.opened.id} on {actuator} is rejected", closes=actuator, why=why)
    advised = _advised(state, command)
    if advised is None:
        remedy = "; `oven-controller set` sets the value back, or another" if wanted in state.closed_because else ""
        return Reply(False, _nothing_open(state, command, "veto") + remedy)
    del state.advised[advised.actuator]
    state.closed_because[advised.id] = f"was {why}"
    return Reply(
        True, f"decision {advised.id} ({_change(advised.actuator, advised.value)}) cannot be approved any more"
    )


def _set(state: State, ballots: Mapping[str, Ballot], who: str, command: OperatorCommand) -> Reply:
    spec = state.specs.get(command.actuator)
    if spec is None:
        return Reply(False, _unknown_actuator(state, command.actuator))
    value = _fitting(spec, command.value)
    if isinstance(value, Fault):
        return Reply(False, f"{show(command.value)} cannot be set for {spec.name}, {value.why}")
    before = state.effective.get(spec.name)
    way = direction(before, value)
    beside = "; ".join(note for note in (unmet(state, spec, way), contradicted(state, spec, way)) if note)
    done = f"set {_change(spec.name, value)}" if spec.kind != "action" else f"did {_change(spec.name, value)}"
    now = f", now {show(before)}" if before is not None else ""
    told = f"{who} {done}{now}" + (f" (overrides {beside})" if beside else "")
    answer = done + (f", although {beside}" if beside else "")
    adoption = Adoption(spec, value, _because(told, command.reason))
    state.rate_limits.thaw(spec.name)
    closes = spec.name if spec.name in ballots else ""
    return Reply(True, answer, adoption, closes, f"{who} set it")


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
        state.rate_limits.thaw(actuator)
    return Reply(True, f"autonomy of {actuator or 'every actuator'} is {level} from now on")


def _trust(state: State, command: OperatorCommand) -> Reply:
    """Trust outlives the agent's restarts: who comes back under its name holds its key."""
    agent, wanted = command.agent, command.actuators
    if agent not in state.agents:
        remedy = "start it, then trust it"
        return Reply(False, f"no agent {show(agent)} has joined this run; there are {_listed(state.agents)}; {remedy}")
    unknown = next((name for name in wanted if name not in state.specs and name != ALL), None)
    if unknown is not None:
        return Reply(False, _unknown_actuator(state, unknown))
    state.trust.say(agent, wanted, command.action == "trust")
    where = _listed(wanted) if wanted and ALL not in wanted else "every actuator"
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
    wanted = command.of or command.actuator
    return next((advised for advised in state.advised.values() if wanted in (advised.id, advised.actuator)), None)


def _nothing_open(state: State, command: OperatorCommand, action: str) -> str:
    wanted = clip(command.of or command.actuator, 128)
    if fate := state.closed_because.get(wanted):
        return f"decision {wanted} {fate}: there is nothing left to {action}"
    waiting = [f"{advised.id} on {advised.actuator}" for advised in state.advised.values()]
    what = "advised decision" if action == "approve" else "open ballot and no advised decision"
    return f"there is no {what} {show(wanted)}; advised are {_listed(waiting)}"


def _fitting(spec: ActuatorSpec, value: Value) -> Value | Fault:
    """`value` as the actuator takes it, within its bounds, or why not."""
    found = shaped(spec, value)
    return found if isinstance(found, Fault) else outside(spec, found) or found


def _change(actuator: str, value: Value) -> str:
    return actuator if value is None else f"{actuator} to {show(value)}"


def _because(said: str, reason: str) -> str:
    reason = clip(reason, 400)
    return f"{said}: {reason}" if reason else said


def _unknown_actuator(state: State, actuator: str) -> str:
    return f"this run has no actuator {show(actuator)}; there are {_listed(state.specs)}"


def _listed(names: Iterable[str]) -> str:
    return clip(", ".join(sorted(names)), 600) or "none"
