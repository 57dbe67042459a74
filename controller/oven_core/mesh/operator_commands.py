"""Handle operators' commands: approve, veto, set, mute, trust and autonomy. Each command gets one reply.

An operator overrides the limits on agents (autonomy, quorum, cool-down, budget, largest change), but never the
announced bounds. The learner handles `hold`, `resume` and `stop` itself, and replies with a receipt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oven_core.mesh.actuator_values import Fault, clip, coerce_proposal, direction, show
from oven_core.mesh.ballots import Ballot
from oven_core.mesh.guardrails import check_approval, check_contradictions, check_requirements
from oven_core.mesh.state import State
from oven_core.mesh.trust import Grant
from oven_core.protocol.messages import ActuatorSpec, Decision, Value
from oven_core.protocol.operator_messages import LEARNER_ACTIONS, OperatorCommand
from oven_core.protocol.rules import ALL


@dataclass(frozen=True, slots=True)
class Adoption:
    """A change that an operator's command adopts."""

    spec: ActuatorSpec
    value: Value
    reason: str
    advice: Decision | None = None
    """The advice that the operator approved."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The reply to a command, and its effects."""

    done: bool
    reason: str
    adoption: Adoption | None = None
    closed_actuator: str = ""
    """The actuator whose open ballot the command closes; empty if it closes none."""
    close_reason: str = ""


def respond(state: State, ballots: Mapping[str, Ballot], name: str, command: OperatorCommand) -> Reply | None:
    """Apply a command of operator `name` to `state`, and return the reply, or None if the learner handles the command.

    `ballots` maps each actuator to its open ballot. Never raises, whatever the command contains."""
    if command.action in LEARNER_ACTIONS:
        return None
    if not state.started or state.ended:
        status = "has ended" if state.ended else "has not started"
        return Reply(False, f"the run {status}; {command.action} only works while it is running")
    operator = f"operator {name}"
    match command.action:
        case "approve":
            return _approve(state, operator, command)
        case "veto":
            return _veto(state, ballots, operator, command)
        case "set":
            return _set_value(state, ballots, operator, command)
        case "autonomy":
            return _set_autonomy(state, command)
        case "trust" | "distrust":
            return _change_trust(state, command)
    return _change_mute(state, command.agent, command.action == "mute")  # mute or unmute


def approval_hint(decision_id: str, ticks: int) -> str:
    """Return the part of an advised decision's reason that explains how to approve it."""
    return f"advised: approve with `oven-controller approve {decision_id}` within {ticks} ticks"


def _approve(state: State, operator: str, command: OperatorCommand) -> Reply:
    """Approve advice. The guardrails are checked again, because the run may have changed since the vote."""
    advice = _find_advice(state, command)
    if advice is None:
        return Reply(False, _explain_not_found(state, command, "approve"))
    decision = f"decision {advice.id} ({_describe_change(advice.actuator, advice.value)})"
    if state.tick > advice.expires_at_tick:
        age, limit = state.tick - advice.tick, advice.expires_at_tick - advice.tick
        cause = f"it was advised {age} ticks ago, and the limit is {limit}"
        return Reply(False, f"{decision} has lapsed: {cause}; use `oven-controller set` instead")
    spec = state.specs.get(advice.actuator)
    if spec is None:
        return Reply(False, f"{decision} cannot be applied: {_explain_unknown_actuator(state, advice.actuator)}")
    value = coerce_proposal(spec, advice.value)
    if isinstance(value, Fault):
        return Reply(False, f"{decision} is no longer valid: {show(advice.value)} for {spec.name}, {value.problem}")
    if obstacle := check_approval(state, spec, value):
        return Reply(False, f"{decision} cannot be approved now: {obstacle}")
    reason = _append_reason(f"approved by {operator}", command.reason) + f"; {advice.reason}"
    adoption = Adoption(spec, value, reason, advice)
    return Reply(True, f"{decision} is approved", adoption)


def _veto(state: State, ballots: Mapping[str, Ballot], operator: str, command: OperatorCommand) -> Reply:
    target = command.subject_id or command.actuator
    veto_text = _append_reason(f"vetoed by {operator}", command.reason)
    for actuator, ballot in ballots.items():
        if target in (ballot.opened.id, actuator):
            answer = f"ballot {ballot.opened.id} on {actuator} is rejected"
            return Reply(True, answer, closed_actuator=actuator, close_reason=veto_text)
    advice = _find_advice(state, command)
    if advice is None:
        remedy = "; use `oven-controller set` to change the value" if target in state.close_reasons else ""
        return Reply(False, _explain_not_found(state, command, "veto") + remedy)
    del state.advised[advice.actuator]
    state.close_reasons[advice.id] = f"was {veto_text}"
    decision = f"decision {advice.id} ({_describe_change(advice.actuator, advice.value)})"
    return Reply(True, f"{decision} can no longer be approved")


def _set_value(state: State, ballots: Mapping[str, Ballot], operator: str, command: OperatorCommand) -> Reply:
    spec = state.specs.get(command.actuator)
    if spec is None:
        return Reply(False, _explain_unknown_actuator(state, command.actuator))
    value = coerce_proposal(spec, command.value)
    if isinstance(value, Fault):
        return Reply(False, f"{show(command.value)} cannot be set for {spec.name}, {value.problem}")
    before = state.effective.get(spec.name)
    new_direction = direction(before, value)
    violations = check_requirements(state, spec, new_direction), check_contradictions(state, spec, new_direction)
    overridden = "; ".join(violation for violation in violations if violation)
    change_text = f"{'ran' if spec.kind == 'action' else 'set'} {_describe_change(spec.name, value)}"
    before_text = f", now {show(before)}" if before is not None else ""
    reason = f"{operator} {change_text}{before_text}" + (f" (overrides {overridden})" if overridden else "")
    answer = change_text + (f", although {overridden}" if overridden else "")
    adoption = Adoption(spec, value, _append_reason(reason, command.reason))
    state.vote_limits.thaw(spec.name)
    closed_actuator = spec.name if spec.name in ballots else ""
    return Reply(True, answer, adoption, closed_actuator, f"{operator} set it")


def _set_autonomy(state: State, command: OperatorCommand) -> Reply:
    level, actuator = command.autonomy, command.actuator
    if level is None:
        return Reply(False, "autonomy needs a level: observe, advise or auto")
    if actuator and actuator not in state.specs:
        return Reply(False, _explain_unknown_actuator(state, actuator))
    if not actuator:
        state.autonomy.clear()
    state.autonomy[actuator] = level
    if level == "auto":
        state.vote_limits.thaw(actuator)
    return Reply(True, f"autonomy for {actuator or 'all actuators'} is now {level}")


def _change_trust(state: State, command: OperatorCommand) -> Reply:
    """Grant or withdraw trust. Trust outlasts the agent's restarts, because a name belongs to the holder of its key."""
    agent, actuators = command.agent, command.actuators
    if agent not in state.agents:
        return Reply(False, f"{_explain_unknown_agent(state, agent)}; start it before you trust it")
    unknown_name = next((name for name in actuators if name not in state.specs and name != ALL), None)
    if unknown_name is not None:
        return Reply(False, _explain_unknown_actuator(state, unknown_name))
    grant: Grant = "none" if command.action == "distrust" else "alone" if command.alone else "trusted"
    state.trust.set(agent, actuators, grant)
    scope = _format_names(actuators) if actuators and ALL not in actuators else "all actuators"
    if command.action == "trust":
        state.vote_limits.lift_suspensions(agent, actuators)
        effect = "its votes have weight and can veto from the next tally"
        if command.alone:
            effect += ", and its proposal needs no second kind of evidence"
        return Reply(True, f"agent {agent} is trusted with {scope}: {effect}")
    return Reply(True, f"agent {agent} is on probation with {scope}: its votes have no weight and cannot veto")


def _change_mute(state: State, agent: str, mute: bool) -> Reply:
    if agent not in state.agents and agent not in state.muted:
        return Reply(False, _explain_unknown_agent(state, agent))
    if mute:
        state.muted.add(agent)
        return Reply(True, f"agent {agent} is muted: its votes are logged but do not count")
    state.muted.discard(agent)
    if not state.is_shadow(agent):
        return Reply(True, f"agent {agent} is not muted: its votes count from the next ballot")
    if agent in state.rules.shadow:
        cause = "it is listed in rules.shadow; remove it there and restart the learner"
    else:
        cause = "it joined as a shadow; restart it as a normal agent"
    return Reply(False, f"agent {agent} is still a shadow: {cause}")


def _find_advice(state: State, command: OperatorCommand) -> Decision | None:
    target = command.subject_id or command.actuator
    return next((advice for advice in state.advised.values() if target in (advice.id, advice.actuator)), None)


def _explain_not_found(state: State, command: OperatorCommand, action: str) -> str:
    target = clip(command.subject_id or command.actuator, 128)
    if close_reason := state.close_reasons.get(target):
        return f"decision {target} {close_reason}: there is nothing left to {action}"
    pending = [f"{advice.id} on {advice.actuator}" for advice in state.advised.values()]
    kind = "advised decision" if action == "approve" else "open ballot or advised decision"
    return f"there is no {kind} {show(target)}; advised decisions: {_format_names(pending)}"


def _describe_change(actuator: str, value: Value) -> str:
    return actuator if value is None else f"{actuator} to {show(value)}"


def _append_reason(sentence: str, reason: str) -> str:
    reason = clip(reason, 400)
    return f"{sentence}: {reason}" if reason else sentence


def _explain_unknown_actuator(state: State, actuator: str) -> str:
    return f"this run has no actuator {show(actuator)}; its actuators: {_format_names(state.specs)}"


def _explain_unknown_agent(state: State, agent: str) -> str:
    return f"no agent {show(agent)} has joined this run; its agents: {_format_names(state.agents)}"


def _format_names(names: Iterable[str]) -> str:
    return clip(", ".join(sorted(names)), 600) or "none"
