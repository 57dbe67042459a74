"""Tables of the subjects outside the log: messages that it does not store, and requests with their replies.

They have their own file because a reader of the log needs none of these message types, which take long to import.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

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
from oven_core.protocol.messages import Message
from oven_core.protocol.subjects import Writer


@dataclass(frozen=True, slots=True)
class UnloggedSubject:
    """A kind of subject outside the log, `oven.<run>.<kind>`. The mesh does not read it, and replays do not have it."""

    kind: str
    message_type: type[Message]
    writer: Writer
    """The role that publishes on it. Operators, monitors, and agents whose key allows it may subscribe."""

    def pattern(self, run: str) -> str:
        """Return the subject in one run. It contains no wildcard."""
        return f"oven.{run}.{self.kind}"


UNLOGGED_SUBJECTS: Final = (UnloggedSubject("completions", SampledGroup, "learner"),)


@dataclass(frozen=True, slots=True)
class Request:
    """A kind of request outside the log, and its reply."""

    name: str
    address: str
    """The subject, with the placeholder `{run}` or `{member}`."""
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
