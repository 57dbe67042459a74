"""Rebuilds the mesh's state from the log, to show the mesh's answer to a command before the operator sends it.

The mesh's own classes (oven_core.mesh) store the state and compute the answers. Decisions are not computed again but
read from the log, so this takes little time. State that only a tally needs is omitted."""

from __future__ import annotations

from copy import copy, deepcopy

from oven_core.mesh import guardrails, operator_commands
from oven_core.mesh.actuator_values import Fault, check_bounds, coerce, direction
from oven_core.mesh.ballots import Ballot
from oven_core.mesh.guardrails import Ruling
from oven_core.mesh.operator_commands import Reply
from oven_core.mesh.state import State
from oven_core.mesh.tally import Tally
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    LearnerMessage,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
    Value,
)
from oven_core.protocol.operator_messages import OperatorCommand

OPERATOR = "you"
"""The operator's name in the mesh's answers."""


class MeshState:
    """The mesh's state after the events that were passed to `feed`, in order."""

    def __init__(self) -> None:
        self.state = State()
        self.ballots: dict[str, Ballot] = {}
        self.is_complete = True
        """Whether every event was passed to `feed`. In a preview of a long log, some are missing."""
        self._seq = 0

    def feed(self, event: Event) -> None:
        state = self.state
        self.is_complete = self.is_complete and event.seq == self._seq + 1
        self._seq = event.seq
        body = event.body
        if isinstance(body, LearnerMessage) and not state.is_new(body):
            return
        match body:
            case Observation():
                state.tick = max(state.tick, body.tick)
                state.apply_observation(body)
                state.mark_silent_agents()
            case Receipt():
                state.apply_receipt(body)
            case RunStarted():
                state.start(body)
            case ActuatorAnnounced():
                state.announce(body.actuator)
            case RunEnded():
                state.ended = True
            case AgentStatus():
                state.apply_status(event.author, body)
            case BallotOpened():
                self.ballots[body.actuator] = Ballot(body)
            case Decision():
                self.ballots.pop(body.actuator if body.ballot else "", None)  # a decision without a ballot closes none
                state.apply_decision(body)
            case Outcome():
                state.reputations.update({line.agent: line.after for line in body.lines})
            case OperatorCommand() if body.id not in state.commands:
                state.commands[body.id] = (event.author, body)
                operator_commands.respond(state, self.ballots, event.author, body)

    def reply(self, command: OperatorCommand) -> Reply | None:
        """Return the mesh's answer to a command, without changing the state. Return None if the learner would answer
        it, or if events are missing."""
        if not self.is_complete:
            return None
        return operator_commands.respond(self._copy(), self.ballots, OPERATOR, command)

    def ruling(self, actuator: str, value: Value) -> Ruling | None:
        """Return the guardrails' ruling if agents voted for this value. An operator's command overrides it. Return None
        if the actuator does not accept the value, or if events are missing."""
        spec = self.state.specs.get(actuator)
        if spec is None or not self.is_complete:
            return None
        coerced = coerce(spec, value)
        if isinstance(coerced, Fault) or check_bounds(spec, coerced):
            return None
        change_direction = direction(self.state.effective.get(actuator), coerced)
        return guardrails.judge_change(self.state, spec, Tally(True, coerced, change_direction, (), ""))

    def _copy(self) -> State:
        """Copy the state, because computing an answer changes it."""
        state = copy(self.state)
        state.autonomy, state.muted = dict(state.autonomy), set(state.muted)
        state.advised, state.close_reasons = dict(state.advised), dict(state.close_reasons)
        state.trust, state.vote_limits = deepcopy(state.trust), deepcopy(state.vote_limits)
        return state
