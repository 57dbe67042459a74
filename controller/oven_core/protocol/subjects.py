"""The table of the log's subjects, with their message types and writers. unlogged_subjects has the other subjects.

Other modules derive from them the valid messages (oven_core.protocol.codec), the signers (oven_core.security.signing),
the server's permissions (oven_core.protocol.permissions), the log and votes streams (oven_core.bus.streams), the
AsyncAPI document and the tables in the docs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    LearnerMessage,
    LogMessage,
    Observation,
    Outcome,
    Receipt,
    RunEnded,
    RunStarted,
    StepClosed,
    Vote,
)
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand, OperatorKey

Writer = Literal["learner", "mesh", "agent", "operator"]


@dataclass(frozen=True, slots=True)
class Subject:
    """A kind of logged subject, `oven.<run>.<kind>` or `oven.<run>.<kind>.<last>`."""

    kind: str
    message_types: tuple[type[LogMessage], ...]
    writer: Writer
    """The role that publishes on it. Learner, mesh and operators sign their messages. Agents do not, because the server
    lets each agent publish only under its own name. Agents' messages go to the votes stream."""
    last_token: str = ""
    """The meaning of the last token: the writer's name, or the message's id or tick; empty if there is none."""
    agents_may_read: bool = False
    """Whether agents may subscribe. Operators and monitors may subscribe to everything."""

    @property
    def signed(self) -> bool:
        """Whether messages on the subject are signed."""
        return self.writer != "agent"

    def pattern(self, run: str) -> str:
        """Return the pattern that matches all subjects of the kind in one run."""
        return f"oven.{run}.{self.kind}" + (".*" if self.last_token else "")

    def address(self, run: str, last_token: str) -> str:
        """Return the subject of the kind with this last token, which is ignored if the kind has none."""
        return f"oven.{run}.{self.kind}" + (f".{last_token}" if self.last_token else "")


SUBJECTS: Final = (
    Subject("run", (RunStarted, RunEnded, ActuatorAnnounced, PromptsInjected), "learner", agents_may_read=True),
    Subject("observation", (Observation,), "learner", agents_may_read=True),
    Subject("agent", (AgentStatus,), "agent", last_token="agent", agents_may_read=True),
    Subject("vote", (Vote,), "agent", last_token="agent"),
    Subject("alert", (Alert,), "agent", last_token="agent", agents_may_read=True),
    Subject("ballot", (BallotOpened,), "mesh", last_token="id", agents_may_read=True),
    Subject("decision", (Decision,), "mesh", last_token="id", agents_may_read=True),
    Subject("receipt", (Receipt,), "learner", agents_may_read=True),
    Subject("outcome", (Outcome,), "mesh", last_token="id", agents_may_read=True),
    Subject("operator", (OperatorCommand, OperatorKey), "operator", last_token="operator"),
    Subject("answer", (CommandAnswer,), "mesh", last_token="id"),
    Subject("step", (StepClosed,), "mesh", last_token="tick"),
)
BY_KIND: Final = {subject.kind: subject for subject in SUBJECTS}
UNSIGNED: Final = tuple(subject.kind for subject in SUBJECTS if not subject.signed)
SIGNERS: Final[dict[str, str]] = {
    subject.kind: subject.writer for subject in SUBJECTS if subject.writer in ("learner", "mesh")
}
"""The signing role by kind. Operators are not listed: they sign with the key named at the end of the subject."""

_KIND_OF: Final = {model: subject.kind for subject in SUBJECTS for model in subject.message_types}


def learner_subject(run: str, message: LearnerMessage) -> str:
    """Return the subject of a learner's message."""
    return BY_KIND[_KIND_OF[type(message)]].pattern(run)


def agent_subject(run: str, name: str, message: LogMessage) -> str:
    """Return the subject of an agent's message."""
    return BY_KIND[_KIND_OF[type(message)]].address(run, name)


def kinds_written_by(*writers: Writer) -> tuple[str, ...]:
    """Return the kinds of subjects that these roles write."""
    return tuple(subject.kind for writer in writers for subject in SUBJECTS if subject.writer == writer)


def patterns_written_by(run: str, *writers: Writer) -> list[str]:
    """Return the patterns of the subjects that these roles write."""
    return [BY_KIND[kind].pattern(run) for kind in kinds_written_by(*writers)]


def log_subjects(run: str) -> list[str]:
    """Return the subjects that the log stores directly.

    A wildcard would overlap the votes stream's subjects, which NATS rejects (error 10065)."""
    return [subject.pattern(run) for subject in SUBJECTS if subject.signed]


def votes_subjects(run: str) -> list[str]:
    """Return the subjects that the votes stream stores and from which the log copies."""
    return [subject.pattern(run) for subject in SUBJECTS if not subject.signed]
