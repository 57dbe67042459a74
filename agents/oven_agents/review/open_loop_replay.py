"""Replays a recorded run to agents in an open loop, and computes their votes and the decisions of a mesh on them.

The agents receive the same events as in a live run: the recorded start, observations and receipts, and the ballots and
decisions of a mesh. In this mesh, their votes replace the recorded votes of agents with the same names. All agents vote
after each event, before their messages are added in name order, so no agent sees another agent's vote first. A live
agent skips windows while it is busy, so it may vote here on windows that it skipped in the recording.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import without_graph
from oven_agents.sdk.columnar_window import Columns
from oven_core.errors import OvenError
from oven_core.mesh.actuator_values import direction
from oven_core.mesh.outputs import Output
from oven_core.protocol import names
from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    LearnerMessage,
    LogMessage,
    Observation,
    Receipt,
    RunStarted,
    Value,
    Vote,
)
from oven_core.protocol.rules import Rules
from oven_runs.log.counterfactual import ChangedMesh, Divergence
from oven_runs.log.replay import check_version

MAX_ROUNDS = 100
"""Maximum number of rounds in which agents may react to one another before the next event."""


@dataclass
class CastVote:
    """A vote that an agent cast in the replay, and the mesh's decision on its ballot."""

    agent: str
    vote: Vote
    tick: int
    step: int
    before: Value
    """The actuator's value at the vote, as the mesh knew it."""
    ballot: str = ""
    """The ballot's id. It is empty if the vote did not count."""
    decision: Decision | None = None

    @property
    def change(self) -> tuple[str, str]:
        """The actuator, and the direction of the change."""
        return self.vote.actuator, direction(self.before, self.vote.value)


@dataclass(frozen=True)
class AgentNotice:
    """A message for people: a notice, an alert, or a withheld proposal."""

    agent: str
    tick: int
    step: int
    text: str


class OpenLoopReplay:
    """A replay with agents, their sessions, and a mesh. Call `add` with each verified event in order."""

    def __init__(
        self, run: str, agents: Mapping[str, Agent], adapt_rules: Callable[[Rules], Rules] = lambda rules: rules
    ) -> None:
        """Create a replay. `adapt_rules` maps the rules of the recording to the rules of the replay."""
        self.votes: list[CastVote] = []
        self.notices: list[AgentNotice] = []
        self.cannot_fire: dict[str, str] = {}
        self.changes: list[tuple[int, str]] = []
        """(tick, description) of every change to the recorded run."""
        self.recorded_votes: dict[str, list[Vote]] = {}
        """Agent → its recorded votes. An agent that took no part has no entry."""
        self.shadows: set[str] = set()
        """Agents that were shadows in the recording."""
        create_window = Columns().window
        self._sessions = {name: Session(agents[name], name, create_window=create_window) for name in sorted(agents)}
        self._mesh = ChangedMesh(run, adapt_rules)
        self._subjects = names.Subjects(run)
        self._owners = {
            subject(name): name
            for name in self._sessions
            for subject in (self._subjects.vote, self._subjects.agent, self._subjects.alert)
        }
        self._undecided: dict[str, list[CastVote]] = {}  # votes without a decision, by ballot
        self._latest = (0, -1)  # (incarnation, n) of the newest learner message, because one may be stored twice
        self._step = 0

    @property
    def started(self) -> bool:
        return self._mesh.started

    @property
    def tick(self) -> int:
        return self._mesh.tick

    @property
    def proposals(self) -> list[CastVote]:
        return [cast for cast in self.votes if cast.vote.stance == "propose"]

    @property
    def decisions(self) -> Sequence[Decision]:
        """The mesh's decisions, in order."""
        return self._mesh.computed

    @property
    def divergences(self) -> list[Divergence]:
        """Decisions that differ between the replay and the recording."""
        return self._mesh.divergences()

    @property
    def ignored_receipts(self) -> int:
        """Number of recorded receipts for decisions that the replay did not make."""
        return self._mesh.ignored_receipts

    @property
    def problems(self) -> dict[str, list[str]]:
        """Agent → tracebacks from its code."""
        return {name: session.problems for name, session in self._sessions.items() if session.problems}

    def add(self, event: Event) -> LogMessage | None:
        """Replay one event, and return the message that the agents received. It is None for recorded decisions, and for
        recorded messages that the agents' messages replace. Raises ConfigError for a log of another schema version."""
        check_version(event)
        if event.subject in self._owners:
            self._store_recorded(self._owners[event.subject], event.body)
            return None
        message, outputs = self._mesh.feed(event)
        if isinstance(message, LearnerMessage):
            if (message.incarnation, message.n) <= self._latest:
                return None
            self._latest = message.incarnation, message.n
        if isinstance(message, Observation):
            self._step = message.step
        elif isinstance(message, RunStarted):
            self.cannot_fire.clear()  # after this start, each agent announces again whether it can vote
        if message is not None:
            self._record_change(message)
            if not isinstance(message, Alert):  # agents do not receive one another's alerts
                self._publish(message)
        self._publish_outputs(outputs)
        if message is not None or outputs:
            self._run_agents(event)
        return message

    def _store_recorded(self, agent: str, message: object) -> None:
        votes = self.recorded_votes.setdefault(agent, [])
        if isinstance(message, Vote):
            votes.append(message)
        elif isinstance(message, AgentStatus) and message.shadow:
            self.shadows.add(agent)

    def _record_change(self, message: LogMessage) -> None:
        match message:
            case RunStarted() if message.incarnation > 1:
                self.changes.append((message.tick, "the run was restarted"))
            case ActuatorAnnounced():
                self.changes.append((message.tick, f"{message.actuator.name} was announced again"))
            case Receipt(status="applied") if message.decision_id:
                self.changes.append((message.tick, f"{message.actuator} was changed"))

    def _run_agents(self, event: Event) -> None:
        """Let all agents react until none has a new message."""
        for _ in range(MAX_ROUNDS):
            replies = [(name, without_graph(session.react())) for name, session in self._sessions.items()]
            if not any(messages for _, messages in replies):
                return
            outputs: list[Output] = []
            for name, messages in replies:
                for message in messages:
                    outputs += self._add_message(name, message, event)
            self._publish_outputs(outputs)
        active = ", ".join(name for name, messages in replies if messages)
        raise OvenError(f"{active} still sent messages after {MAX_ROUNDS} rounds at tick {self._mesh.tick}")

    def _add_message(self, agent: str, message: Vote | AgentStatus | Alert, event: Event) -> Sequence[Output]:
        if isinstance(message, Vote):
            return self._cast(agent, message, event)
        if isinstance(message, Alert):
            self._add_notice(agent, f"{message.symptom} {message.state}: {message.reason}")
            return ()
        if message.reason and message.state in ("joined", "cannot_fire", "failed"):
            self.cannot_fire[agent] = message.reason
        elif message.state == "notice":
            self._add_notice(agent, message.reason)
        return self._mesh.add(self._subjects.agent(agent), message.model_copy(update={"shadow": False}), event)

    def _add_notice(self, agent: str, text: str) -> None:
        self.notices.append(AgentNotice(agent, self._mesh.tick, self._step, text))

    def _cast(self, agent: str, vote: Vote, event: Event) -> Sequence[Output]:
        value, ballot = self._mesh.value(vote.actuator), self._mesh.ballot_id(vote.actuator)
        cast = CastVote(agent, vote, self._mesh.tick, self._step, value, ballot)
        self.votes.append(cast)
        outputs = self._mesh.add(self._subjects.vote(agent), vote, event)
        for message in (output.message for output in outputs):
            if isinstance(message, BallotOpened):
                cast.ballot = message.id
            elif isinstance(message, Decision) and not message.ballot:
                cast.decision = message  # rejected at once
        if cast.ballot and cast.decision is None:
            self._undecided.setdefault(cast.ballot, []).append(cast)
        return outputs

    def _publish(self, message: LogMessage) -> None:
        for session in self._sessions.values():
            session.absorb(message)

    def _publish_outputs(self, outputs: Sequence[Output]) -> None:
        for message in (output.message for output in outputs):
            if isinstance(message, BallotOpened | Decision):
                self._publish(message)
            if isinstance(message, Decision):
                for cast in self._undecided.pop(message.ballot, ()):
                    cast.decision = message
