"""Bytes into messages: what may stand on which subject, and what is said of bytes that are no message."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from oven_controller.messages import (
    Body,
    Curriculum,
    CurriculumRequest,
    DiagnoseRequest,
    Diagnosis,
    GraphInfo,
    GraphInfoRequest,
    GraphQuery,
    HistoryBatch,
    HistoryRequest,
    Judgement,
    JudgeRequest,
    OutcomeReport,
    OutcomeTaken,
    QueryAnswer,
    ScoreReply,
    ScoreRequest,
    TokenPrior,
    TokenPriorRequest,
)

_BODY: TypeAdapter[Body] = TypeAdapter(Body)

# Which types a subject may carry: a vote on the decisions' subject is noise, whoever sent it.
CARRIES: Final[dict[str, tuple[str, ...]]] = {
    "run": ("RunStarted", "RunEnded"),
    "observation": ("Observation",),
    "agent": ("AgentStatus",),
    "vote": ("Vote",),
    "ballot": ("BallotOpened",),
    "decision": ("Decision",),
    "receipt": ("Receipt",),
    "outcome": ("Outcome",),
    "operator": ("OperatorCommand",),
    "answer": ("CommandAnswer",),
    "step": ("StepClosed",),
}

Fault: TypeAlias = Literal["malformed", "version", "misplaced", "unsigned", "signature"]
"""Why an entry of the log counts for nothing: no message, one of another version, one on a subject that does not carry
it, one without a signature where one is needed, one whose signature does not hold."""


class Malformed(BaseModel):
    """What could not be read, and why. Readers skip it and count it; it never becomes a value."""

    model_config = ConfigDict(frozen=True)

    reason: str
    fault: Fault = "malformed"


def decode(subject_kind: str, data: bytes) -> Body | Malformed:
    """The message in `data`, or why there is none. Pure: every replica judges alike."""
    try:
        body = _BODY.validate_json(data)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        fault: Fault = "version" if first["loc"][-1:] == ("v",) else "malformed"
        return Malformed(reason=f"{where}: {first['msg']}", fault=fault)
    if body.type not in CARRIES.get(subject_kind, ()):
        reason = f"a {body.type} does not belong on the subject {subject_kind!r}"
        return Malformed(reason=reason, fault="misplaced")
    return body


Service: TypeAlias = Annotated[
    ScoreRequest
    | ScoreReply
    | DiagnoseRequest
    | Diagnosis
    | JudgeRequest
    | Judgement
    | GraphInfoRequest
    | GraphInfo
    | OutcomeReport
    | OutcomeTaken
    | CurriculumRequest
    | Curriculum
    | TokenPriorRequest
    | TokenPrior
    | GraphQuery
    | QueryAnswer
    | HistoryRequest
    | HistoryBatch,
    Field(discriminator="type"),
]
"""What is asked and answered beside the log."""


def json_schema() -> dict[str, Any]:
    """JSON Schema of all bodies, by class name under `$defs`."""
    return _BODY.json_schema()


def service_schema() -> dict[str, Any]:
    """The same for requests and answers."""
    return TypeAdapter[Any](Service).json_schema()
