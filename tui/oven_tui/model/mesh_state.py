"""The mesh's state as the log tells it, for showing what the mesh would say to a command before it is given.

The mesh's own classes hold it and answer from it (oven_core.mesh): decisions are taken from the log and not
computed, so a fold costs a monitor next to nothing. What only a tally needs, it does not follow.
"""

from __future__ import annotations

from copy import copy, deepcopy

from oven_core.mesh import guardrails, operator_commands
from oven_core.mesh.actuator_values import Fault, direction, outside, shaped
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

ASKS = "you"
"""Who asks, in the mesh's sentences."""


class MeshState:
    """Feed it the log's events in order."""

    def __init__(self) -> None:
        self.state = State()
        self.ballots: dict[str, Ballot] = {}
        self.whole = True
        """Whether no event was left out, as a preview of a long log leaves some: else it answers nothing."""
        self._seq = 0

    def feed(self, event: Event) -> None:
        state = self.state
        self.whole = self.whole and event.seq == self._seq + 1
        self._seq = event.seq
        match event.body:
            case LearnerMessage() as body:
                if state.is_new(body):
                    self._learner(body)
            case AgentStatus() as body:
                state.apply_status(event.author, body)
            case BallotOpened() as body:
                self.ballots[body.actuator] = Ballot(body)
            case Decision() as body:
                if body.ballot:
                    self.ballots.pop(body.actuator, None)
                state.apply_decision(body)
            case Outcome() as body:
                state.reputations.update({line.agent: line.after for line in body.lines})
            case OperatorCommand() as body:
                if body.id not in state.commands:
                    state.commands[body.id] = (event.author, body)
                    operator_commands.respond(state, self.ballots, event.author, body)
            case _:
                pass

    def _learner(self, body: LearnerMessage) -> None:
        state = self.state
        match body:
            case Observation():
                state.tick = max(state.tick, body.tick)
                state.apply_observation(body)
                state.drop_silent()
            case Receipt():
                state.apply_receipt(body)
            case RunStarted():
                state.start(body)
            case ActuatorAnnounced():
                state.announce(body.actuator)
            case RunEnded():
                state.ended = True
            case _:
                pass

    def reply(self, command: OperatorCommand) -> Reply | None:
        """What the mesh would answer now; None where the learner does, or this is not whole. Nothing changes."""
        if not self.whole:
            return None
        return operator_commands.respond(self._copy(), self.ballots, ASKS, command)

    def ruling(self, actuator: str, value: Value) -> Ruling | None:
        """What the guardrails would make of the value if a vote on it had passed: what a person's word overrides. None
        for a value that the actuator does not take, or where this is not whole."""
        spec = self.state.specs.get(actuator)
        if spec is None or not self.whole:
            return None
        found = shaped(spec, value)
        if isinstance(found, Fault) or outside(spec, found):
            return None
        way = direction(self.state.effective.get(actuator), found)
        return guardrails.rule(self.state, spec, Tally(True, found, way, (), ""))

    def _copy(self) -> State:
        """One that an answer may write into."""
        state = copy(self.state)
        state.autonomy, state.muted = dict(state.autonomy), set(state.muted)
        state.advised, state.closed_because = dict(state.advised), dict(state.closed_because)
        state.trust, state.vote_limits = deepcopy(state.trust), deepcopy(state.vote_limits)
        return state
