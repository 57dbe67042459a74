"""All agents over one recorded run, open loop, before one mesh: their votes and what would have been decided.

They hear what they would have heard: the recording's start, observations and receipts, and the ballots and decisions of
a mesh in which their votes stand in place of those that the recording has under their names. At each tick they are
asked together, and their words are entered by name, so that none hears another's first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from oven_agents.review.columnar_window import ColumnarWindow
from oven_agents.sdk.agent import Agent
from oven_agents.sdk.alternative_plans import spoken
from oven_agents.sdk.session import KEPT, Session
from oven_agents.sdk.window import Window, WindowMaker
from oven_core.errors import OvenError
from oven_core.mesh.actuator_values import direction
from oven_core.mesh.outputs import Output
from oven_core.protocol import names
from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    BallotOpened,
    Decision,
    LogMessage,
    Observation,
    Receipt,
    RunStarted,
    Value,
    Vote,
)
from oven_runs.log.counterfactual import OpenLoop
from oven_runs.log.replay import refuse_another_version

ROUNDS = 100
"""Times that agents may answer one another before the next event."""


@dataclass
class Said:
    """One proposal."""

    agent: str
    vote: Vote
    tick: int
    step: int
    before: Value
    """Of the actuator, as the mesh knew it."""
    decision: Decision | None = None

    @property
    def change(self) -> tuple[str, str]:
        """The actuator, and which way it would have moved."""
        return self.vote.actuator, direction(self.before, self.vote.value)


class OpenLoopReplay:
    """Feed it the recorded events in order, judged."""

    def __init__(self, run: str, agents: Mapping[str, Agent], speaking: Set[int] | None = None) -> None:
        """`speaking`: the only ticks at which an agent has anything to say; None: they are asked at each."""
        self.said: list[Said] = []
        self.cannot_fire: dict[str, str] = {}
        self.notices: list[tuple[int, str, str]] = []
        """(step, agent, text) of what agents had to say to people, proposals that were held back among it."""
        self.changes: list[tuple[int, str]] = []
        """Ticks at which the recorded run itself was changed, and by what."""
        self._columns = ColumnarWindow(KEPT)
        self._speaking = speaking
        windows: WindowMaker = self._columns.window if speaking is None else _newest_only
        self._sessions = {
            name: Session(agents[name], name, windows=windows, heartbeats=speaking is None) for name in sorted(agents)
        }
        self._loop = OpenLoop(run)
        self._on = names.Subjects(run)
        self._own = {on(name) for name in self._sessions for on in (self._on.vote, self._on.agent, self._on.alert)}
        self._waiting: dict[str, list[Said]] = {}  # ballot → proposals on it
        self._step = 0
        self._training = ""

    @property
    def started(self) -> bool:
        return self._loop.started

    @property
    def tick(self) -> int:
        return self._loop.tick

    @property
    def decisions(self) -> Sequence[Decision]:
        """What the mesh decided on the agents' votes, in its order."""
        return self._loop.computed

    @property
    def problems(self) -> dict[str, list[str]]:
        """Tracebacks of the agents' own code."""
        return {name: session.problems for name, session in self._sessions.items() if session.problems}

    def take(self, event: Event) -> None:
        """Raises ConfigError on a log of another schema version."""
        refuse_another_version(event)
        if event.subject in self._own:
            return
        heard, outputs = self._loop.take(event)
        quiet = False
        if isinstance(heard, Observation):
            self._step = heard.step
            if self._speaking is None:
                self._columns.add(heard)
            else:
                quiet = heard.tick not in self._speaking and not outputs
        elif isinstance(heard, RunStarted):
            self.cannot_fire.clear()  # each says it again, of this start
            if heard.training != self._training:
                self._columns.clear()
            self._training = heard.training
        self._note_change(heard)
        if quiet:
            return
        if heard is not None:
            for session in self._sessions.values():
                session.absorb(heard)
        self._hear(outputs)
        if heard is not None or outputs:
            self._react(event)

    def _note_change(self, heard: LogMessage | None) -> None:
        match heard:
            case RunStarted() if heard.incarnation > 1:
                self.changes.append((heard.tick, "the run was started again"))
            case ActuatorAnnounced():
                self.changes.append((heard.tick, f"{heard.actuator.name} was announced anew"))
            case Receipt(status="applied") if heard.decision_id:
                self.changes.append((heard.tick, f"{heard.actuator} was changed"))

    def _react(self, event: Event) -> None:
        for _ in range(ROUNDS):
            said = [(name, words) for name, session in self._sessions.items() if (words := spoken(session.react()))]
            if not said:
                return
            outputs: list[Output] = []
            for name, words in said:
                for word in words:
                    if isinstance(word, Vote):
                        outputs += self._vote(name, word, event)
                        continue
                    if isinstance(word, Alert):
                        self.notices.append((self._step, name, f"{word.symptom} {word.state}: {word.reason}"))
                        continue
                    if word.state == "cannot_fire":
                        self.cannot_fire[name] = word.reason
                    elif word.state == "notice":
                        self.notices.append((self._step, name, word.reason))
                    outputs += self._loop.add(self._on.agent(name), word, event)
            self._hear(outputs)
        talking = ", ".join(name for name, _ in said)
        raise OvenError(f"{talking} still had something to say after {ROUNDS} rounds at tick {self._loop.tick}")

    def _vote(self, name: str, vote: Vote, event: Event) -> Sequence[Output]:
        before, ballot = self._loop.value(vote.actuator), self._loop.ballot(vote.actuator)
        outputs = self._loop.add(self._on.vote(name), vote, event)
        if vote.stance != "propose":
            return outputs
        said = Said(name, vote, self._loop.tick, self._step, before)
        self.said.append(said)
        for output in outputs:
            if isinstance(output.message, BallotOpened):
                ballot = output.message.id
            elif isinstance(output.message, Decision) and not output.message.ballot:
                said.decision = output.message  # refused on the spot
        if ballot and said.decision is None:
            self._waiting.setdefault(ballot, []).append(said)
        return outputs

    def _hear(self, outputs: Sequence[Output]) -> None:
        """What the mesh says, as the agents hear it."""
        for body in (output.message for output in outputs):
            if isinstance(body, BallotOpened | Decision):
                for session in self._sessions.values():
                    session.absorb(body)
            if isinstance(body, Decision):
                for said in self._waiting.pop(body.ballot, ()):
                    said.decision = body


def _newest_only(run: RunStarted, observations: Sequence[Observation], *rest: object) -> Window:
    """For agents that were asked before, and only say it."""
    return Window(run, [observations[-1]], *rest)  # type: ignore[arg-type]
