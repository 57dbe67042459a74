"""Tables of every subject (logged, unlogged and request/reply) with its message types, writer and readers.

Everything else is derived from these tables: valid messages (oven_core.protocol.codec), signers
(oven_core.security.signing), the server's permissions (oven_core.protocol.permissions), the log stream
and the votes stream (oven_core.bus.streams), AsyncAPI and the tables in the docs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from oven_core.protocol.alerts import Alert
from oven_core.protocol.announcements import ActuatorAnnounced, PromptsInjected
from oven_core.protocol.committee_requests import ProbeReply, ProbeRequest, ScoreReply, ScoreRequest
from oven_core.protocol.completion_messages import CompletionsBatch, CompletionsRequest, SampledGroup
from oven_core.protocol.graph_requests import (
    Curriculum,
    CurriculumRequest,
    DiagnoseRequest,
    Diagnosis,
    GraphInfo,
    GraphInfoRequest,
    GraphQuery,
    Judgement,
    JudgeRequest,
    PartTaken,
    QueryAnswer,
    RequestPart,
    TokenPrior,
    TokenPriorRequest,
)
from oven_core.protocol.history_requests import HistoryBatch, HistoryRequest
from oven_core.protocol.messages import (
    AgentStatus,
    BallotOpened,
    Decision,
    LearnerMessage,
    LogMessage,
    Message,
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
    """The role that writes it. Learner, mesh and operators sign. Agents do not, because the server lets each agent
    publish only under its own name. Their messages go to the votes stream."""
    last_token: str = ""
    """The meaning of the last token: the writer's name, or the message's id or tick; empty if there is none."""
    agents_may_read: bool = False
    """Whether agents may subscribe. Operators and monitors may subscribe to everything."""

    @property
    def signed(self) -> bool:
        """Whether its events are signed."""
        return self.writer != "agent"

    def pattern(self, run: str) -> str:
        """Return the pattern of all subjects of the kind in one run."""
        return f"oven.{run}.{self.kind}" + (".*" if self.last_token else "")

    def address(self, run: str, last: str) -> str:
        """Return one subject of the kind."""
        return f"oven.{run}.{self.kind}" + (f".{last}" if self.last_token else "")


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
"""Kind → role that signs it. Operators sign with the key named at the end of the subject."""

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

    A wildcard would overlap the votes stream's subjects, which NATS rejects (error 10065).
    """
    return [subject.pattern(run) for subject in SUBJECTS if subject.signed]


def votes_subjects(run: str) -> list[str]:
    """Return the subjects that the votes stream stores, and the log copies from there."""
    return [subject.pattern(run) for subject in SUBJECTS if not subject.signed]


@dataclass(frozen=True, slots=True)
class UnloggedSubject:
    """A kind of subject outside the log, `oven.<run>.<kind>`. The mesh does not read it, and it is absent from
    replays."""

    kind: str
    message_type: type[Message]
    writer: Writer
    """The role that writes it. Operators, monitors, and agents whose key allows it may subscribe."""

    def pattern(self, run: str) -> str:
        """Return the subject in one run."""
        return f"oven.{run}.{self.kind}"


UNLOGGED_SUBJECTS: Final = (UnloggedSubject("completions", SampledGroup, "learner"),)


@dataclass(frozen=True, slots=True)
class Request:
    """A kind of request outside the log, and its reply."""

    name: str
    address: str
    """The subject, with `{run}` or `{member}` in place of the name."""
    request_type: type[Message]
    reply_type: type[Message]


REQUESTS: Final = (
    Request("history", "oven.{run}.history", HistoryRequest, HistoryBatch),
    Request("completions.stored", "oven.{run}.completions.stored", CompletionsRequest, CompletionsBatch),
    Request("reward", "oven.reward.{member}", ScoreRequest, ScoreReply),
    Request("probe", "oven.probe.{member}", ProbeRequest, ProbeReply),
    Request("kg.diagnose", "oven.kg.diagnose", DiagnoseRequest, Diagnosis),
    Request("kg.judge", "oven.kg.judge", JudgeRequest, Judgement),
    Request("kg.info", "oven.kg.info", GraphInfoRequest, GraphInfo),
    Request("kg.curriculum", "oven.kg.curriculum", CurriculumRequest, Curriculum),
    Request("kg.token_prior", "oven.kg.token_prior", TokenPriorRequest, TokenPrior),
    Request("kg.upload", "oven.kg.upload", RequestPart, PartTaken),
    Request("kg.query", "oven.kg.query", GraphQuery, QueryAnswer),
)
