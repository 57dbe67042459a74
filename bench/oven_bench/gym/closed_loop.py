"""A run in memory, without clock, I/O or bus: learner messages go in, and decisions come out.

The mesh is the real one. Participants receive the same messages as an agent's process, and the order of their messages
depends only on the log. So the same learner messages produce the same log, byte for byte, and `oven_runs.log.replay`
recomputes the same decisions from it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

from oven_agents.runtime.agent_loader import load, repeatable_agents
from oven_agents.runtime.kg_client import AskPrior, answer_requests, consultation
from oven_agents.sdk.agent import Agent
from oven_agents.sdk.agent_session import Session
from oven_core.errors import ConfigError, OvenError
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol import names
from oven_core.protocol.alerts import Alert
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import UNKNOWN_TIME, Event
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
"""Maximum rounds of replies between two learner messages. Agents need two or three."""


class Participant(Protocol):
    """Receives a run's messages and replies to them; usually an agent."""

    @property
    def name(self) -> str:
        """The name of its messages in the log; unique among participants."""

    def absorb(self, body: LogMessage | Malformed) -> None:
        """Receive a message of the learner or the mesh."""

    def react(self) -> Sequence[Vote | AgentStatus | Alert]:
        """Return the replies to all messages since the last call; empty if nothing new arrived."""


class AgentParticipant:
    """An agent that runs in this process: its session, plus the knowledge-graph prior's changes to its proposals."""

    def __init__(self, name: str, agent: Agent, ask: AskPrior | None = None) -> None:
        """`ask` sends a question to the prior service, or is None without a service."""
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
        consultations = (
            consultation(message, session.run, session.knobs, session.in_flight, log.debug) for message in messages
        )
        return [message for questions in consultations for message in answer_requests(questions, self._ask)]


def participants(agents: Sequence[str] | None = None, ask: AskPrior | None = None) -> list[Participant]:
    """Return a participant for each of these agents, given by name or file.

    None selects all installed agents whose votes depend only on the log: the default agents of a run without those that
    call an external service. Raises UnknownNameError or ConfigError.
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
        """Add a message. Return it and the mesh's outputs as events."""
        event = self._store(subject, body.wire())
        stored = [event]
        for output in self.mesh.step(event):
            event = self._store(output.subject, output.data)
            self.mesh.step(event)  # reading its own output has no consequences
            stored.append(event)
        return stored

    def _store(self, subject: str, data: bytes) -> Event:
        event = Event.read(len(self.events) + 1, subject, data, UNKNOWN_TIME)  # there is no server
        self.events.append(event)
        return event


class ClosedLoop:
    """The learner's counterpart: the mesh and participants in memory.

    All participants react before any of their messages is added, in the order of their names. So no participant sees
    another's message early, as with agents that share a process.
    """

    def __init__(self, run: str, participants: Iterable[Participant]) -> None:
        """Raises ConfigError if two participants share a name, or if a name is not valid."""
        self.log = MemoryLog(run)
        self._participants = sorted(participants, key=lambda participant: names.validate("agent", participant.name))
        all_names = [participant.name for participant in self._participants]
        if duplicates := sorted({name for name in all_names if all_names.count(name) > 1}):
            raise ConfigError(f"two participants are called {', '.join(duplicates)}; give each its own name")

    @property
    def events(self) -> Sequence[Event]:
        """The whole log."""
        return self.log.events

    def send(self, message: LearnerMessage) -> list[Decision | StepClosed]:
        """Add the learner's next message. Return the mesh's messages for the learner once no participant replies.

        Raises OvenError if participants still reply to each other after ROUNDS rounds.
        """
        start = len(self.events)
        self._deliver(self.log.append(learner_subject(self.log.mesh.run, message), message))
        for _ in range(ROUNDS):
            replies = [(member.name, messages) for member in self._participants if (messages := member.react())]
            if not replies:
                bodies = (event.body for event in self.events[start:])
                return [body for body in bodies if isinstance(body, Decision | StepClosed)]
            self._deliver([event for name, messages in replies for body in messages for event in self._add(name, body)])
        active = ", ".join(name for name, _ in replies)
        raise OvenError(
            f"{active} still had something to say after {ROUNDS} rounds at tick {self.log.mesh.state.tick}: "
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
