"""Closed loop in memory: learner messages go in, and decisions come back.

The mesh is the real one. Participants hear what an agent's process hears, and what they say is in the log in an
order that follows from the log alone. No clock, no I/O: the same messages give the same log, byte for byte, and
`oven_runs.log.replay` gives the same decisions from it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

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

ROUNDS = 100
"""Times that participants may answer one another before the learner's next message. Agents need two or three."""


class MemoryLog:
    """One run's log, and the mesh that reads it: what the mesh makes of an event stands right behind it."""

    def __init__(self, run: str) -> None:
        self.mesh = Mesh(run)
        self.on = names.Subjects(run)
        self.events: list[Event] = []

    def append(self, subject: str, body: Message) -> list[Event]:
        """The entry as a reader would have it, and the mesh's behind it."""
        event = self._enter(subject, body.wire())
        entered = [event]
        for output in self.mesh.step(event):
            event = self._enter(output.subject, output.data)
            self.mesh.step(event)  # its own word, read back, has no consequences
            entered.append(event)
        return entered

    def _enter(self, subject: str, data: bytes) -> Event:
        event = Event.read(len(self.events) + 1, subject, data, UNKNOWN)  # no server stored it
        self.events.append(event)
        return event


class Participant(Protocol):
    """Who hears a run and has a say in it: an agent's session, most often."""

    @property
    def name(self) -> str:
        """What its words stand under in the log; no two have the same."""

    def absorb(self, body: LogMessage | Malformed) -> None:
        """Hear what the learner or the mesh said."""

    def react(self) -> Sequence[Vote | AgentStatus | Alert]:
        """What to say to all that was heard since the last time; nothing to nothing new."""


class ClosedLoop:
    """Participants are asked together and their words are entered by name, so that no one hears another's first: as
    agents that share a process do."""

    def __init__(self, run: str, participants: Iterable[Participant]) -> None:
        """Raises ConfigError when two are called alike, or one as no one can be."""
        self.log = MemoryLog(run)
        self._participants = sorted(participants, key=lambda one: names.checked("agent", one.name))
        called = [one.name for one in self._participants]
        if twice := sorted({name for name in called if called.count(name) > 1}):
            raise ConfigError(f"two participants are called {', '.join(twice)}; give each its own name")

    @property
    def events(self) -> Sequence[Event]:
        """The whole log."""
        return self.log.events

    def hear(self, message: LearnerMessage) -> list[Decision | StepClosed]:
        """The learner's next message; what the mesh has to say to the learner once everybody is quiet.

        Raises OvenError when participants have continued answering one another for ROUNDS rounds.
        """
        began = len(self.events)
        self._tell(self.log.append(learner_subject(self.log.mesh.run, message), message))
        for _ in range(ROUNDS):
            said = [(one.name, words) for one in self._participants if (words := one.react())]
            if not said:
                bodies = (event.body for event in self.events[began:])
                return [body for body in bodies if isinstance(body, Decision | StepClosed)]
            entered = [event for name, words in said for word in words for event in self._enter(name, word)]
            self._tell(entered)
        talking = ", ".join(name for name, _ in said)
        raise OvenError(
            f"{talking} still had something to say after {ROUNDS} rounds at tick {self.log.mesh.state.tick}: "
            "a participant's react() must return nothing when it has heard nothing new"
        )

    def _enter(self, name: str, word: Vote | AgentStatus | Alert) -> list[Event]:
        return self.log.append(agent_subject(self.log.mesh.run, name, word), word)

    def _tell(self, entered: Iterable[Event]) -> None:
        for event in entered:
            if isinstance(event.body, Vote | AgentStatus | Alert):
                continue  # agents hear of one another by ballots and decisions only
            for one in self._participants:
                one.absorb(event.body)
