"""A run in memory: learner messages go in, and decisions come back. No clock, no I/O, no bus.

The mesh is the real one. Participants receive what an agent's process receives, and their messages enter the log in an
order that depends only on the log. So the same learner messages give the same log, byte for byte, and
`oven_runs.log.replay` recomputes the same decisions from it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from oven_agents.runtime.kg_client import AskPrior, consult
from oven_agents.runtime.loader import load, repeatable_agents
from oven_agents.sdk.agent import Agent
from oven_agents.sdk.session import Session
from oven_core.errors import ConfigError, OvenError
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol import names
from oven_core.protocol.alerts import Alert
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import UNKNOWN, Event
from oven_core.protocol.messages import (
    AgentStatus,
    Decision,
    LearnerMessage,
    LogMessage,
    Message,
    StepClosed,
    Vote,
)
from oven_core.protocol.subjects import agent_subject, learner_subject

log = logging.getLogger("oven.agent")

ROUNDS = 100
"""How often participants may answer one another before the learner's next message. Agents need two or three rounds."""


class Participant(Protocol):
    """Receives a run's messages and adds its own; usually an agent."""

    @property
    def name(self) -> str:
        """The name of its messages in the log; unique among participants."""

    def absorb(self, body: LogMessage | Malformed) -> None:
        """Receive a message of the learner or the mesh."""

    def react(self) -> Sequence[Vote | AgentStatus | Alert]:
        """Return the answers to all messages since the last call; none if there was no new message."""


class AgentParticipant:
    """An agent without a process: its session, and the prior's part in its proposals."""

    def __init__(self, name: str, agent: Agent, ask: AskPrior | None = None) -> None:
        """`ask` sends a question to the prior service; None: there is no service."""
        self._session = Session(agent, name)
        self._ask = ask or (lambda _endpoint, _request: None)

    @property
    def name(self) -> str:
        return self._session.name

    def absorb(self, body: LogMessage | Malformed) -> None:
        self._session.absorb(body)

    def react(self) -> Sequence[Vote | AgentStatus | Alert]:
        session = self._session
        messages = session.react()
        for problem in session.problems:
            log.error("%s: the agent raised; it abstains on this window\n%s", session.name, problem)
        session.problems.clear()
        return consult(messages, session.run, session.knobs, session.in_flight, self._ask) if messages else []


def participants(agents: Sequence[str] | None = None, ask: AskPrior | None = None) -> list[Participant]:
    """Return a participant for each of these agents, names or files.

    None stands for all installed agents whose votes follow from a log, which is what a run has by default, apart from
    agents that ask an outside service. Raises UnknownNameError or ConfigError.
    """
    return [
        AgentParticipant(name, agent, ask)
        for name, agent in map(load, repeatable_agents() if agents is None else agents)
    ]


class MemoryLog:
    """One run's log and the mesh that reads it. The mesh's outputs directly follow the event that caused them."""

    def __init__(self, run: str) -> None:
        self.mesh = Mesh(run)
        self.subjects = names.Subjects(run)
        self.events: list[Event] = []

    def append(self, subject: str, body: Message) -> list[Event]:
        """Add a message and return it with the mesh's outputs, as a reader of the log receives them."""
        event = self._store(subject, body.wire())
        stored = [event]
        for output in self.mesh.step(event):
            event = self._store(output.subject, output.data)
            self.mesh.step(event)  # reading its own output has no consequences
            stored.append(event)
        return stored

    def _store(self, subject: str, data: bytes) -> Event:
        event = Event.read(len(self.events) + 1, subject, data, UNKNOWN)  # no server stored it
        self.events.append(event)
        return event


class ClosedLoop:
    """A learner's counterpart: the mesh and participants in memory.

    Participants are asked together and their messages are added by name, so that none sees another's first, as with
    agents that share a process.
    """

    def __init__(self, run: str, participants: Iterable[Participant]) -> None:
        """Raises ConfigError if two participants share a name, or if a name is not valid."""
        self.log = MemoryLog(run)
        self._participants = sorted(participants, key=lambda participant: names.checked("agent", participant.name))
        all_names = [participant.name for participant in self._participants]
        if duplicates := sorted({name for name in all_names if all_names.count(name) > 1}):
            raise ConfigError(f"two participants are called {', '.join(duplicates)}; give each its own name")

    @property
    def events(self) -> Sequence[Event]:
        """The whole log."""
        return self.log.events

    def send(self, message: LearnerMessage) -> list[Decision | StepClosed]:
        """Add the learner's next message, and return the mesh's messages for the learner once no participant answers.

        Raises OvenError if participants still answer one another after ROUNDS rounds.
        """
        first = len(self.events)
        self._deliver(self.log.append(learner_subject(self.log.mesh.run, message), message))
        for _ in range(ROUNDS):
            replies = [(each.name, messages) for each in self._participants if (messages := each.react())]
            if not replies:
                bodies = (event.body for event in self.events[first:])
                return [body for body in bodies if isinstance(body, Decision | StepClosed)]
            self._deliver([event for name, messages in replies for body in messages for event in self._add(name, body)])
        talking = ", ".join(name for name, _ in replies)
        raise OvenError(
            f"{talking} still had something to say after {ROUNDS} rounds at tick {self.log.mesh.state.tick}: "
            "a participant's react() must return nothing when it has heard nothing new"
        )

    def _add(self, name: str, body: Vote | AgentStatus | Alert) -> list[Event]:
        return self.log.append(agent_subject(self.log.mesh.run, name, body), body)

    def _deliver(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event.body, Vote | AgentStatus | Alert):
                continue  # agents learn of each other only from ballots and decisions
            for participant in self._participants:
                participant.absorb(event.body)
