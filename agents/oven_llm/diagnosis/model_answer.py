"""Parses the diagnosis that a model's program passes to FINAL, and checks it against the log.

The cause must be a node of the knowledge graph. Each piece of evidence must be an announced metric's mean over a range
of ticks, which is recomputed. The knob must be announced and allowed by the settings, and its new value must be within
its bounds. One error rejects the whole answer, because a model that invents a figure may also invent a cause."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, model_validator

from oven_core.errors import OvenError
from oven_core.mesh.actuator_values import Fault, coerce_proposal, show
from oven_core.protocol.messages import Value
from oven_core.terminal_text import clean
from oven_llm.diagnosis.log_context import LogContext
from oven_llm.providers.structured_reply import ReplyForm

NONE: Final = "none"
"""The cause that an answer states for a healthy run."""
TOLERANCE: Final = 0.005
"""Maximum relative difference from the recomputed figure. About three digits must be correct."""
MAX_EVIDENCE: Final = 8
"""Maximum pieces of evidence."""

RejectionKind = Literal[
    "schema", "unknown_cause", "not_announced", "evidence_differs", "not_allowed", "out_of_range", "no_evidence"
]


class AnswerRejectedError(OvenError, ValueError):
    """Raised if an answer does not match the log or the settings. Rejections are counted by `kind`."""

    def __init__(self, kind: RejectionKind, reason: str) -> None:
        super().__init__(reason)
        self.kind: RejectionKind = kind


class Evidence(ReplyForm):
    """A claim that a metric had this mean over a range of ticks."""

    metric: str = Field(max_length=120)
    from_: int = Field(alias="from")
    to: int
    value: float | Literal["nan"]
    """Mean of the readings; "nan" if one of them is not finite."""

    def as_json(self) -> dict[str, Any]:
        return {"metric": self.metric, "from": self.from_, "to": self.to, "value": self.value}


class RevertIf(ReplyForm):
    """A condition for reverting a change: the metric's mean is beyond a bound."""

    metric: str = Field(max_length=120)
    above: float | None = None
    below: float | None = None

    @model_validator(mode="after")
    def _check_one_bound(self) -> RevertIf:
        if (self.above is None) == (self.below is None):
            raise ValueError("revert_if must have either above or below")
        return self

    def is_met(self, value: float) -> bool:
        """Return whether a value is beyond the bound, as NaN and infinity always are."""
        if not math.isfinite(value):
            return True
        if self.above is not None:
            return value > self.above
        return self.below is not None and value < self.below

    def describe(self) -> str:
        """Return the condition as text, e.g. "loss is above 4"."""
        bound = f"above {self.above:g}" if self.above is not None else f"below {self.below:g}"
        return f"{self.metric} is {bound}"


class ProposedChange(ReplyForm):
    """A change proposed by the agent, with the condition for reverting it."""

    knob: str
    value: float | str | dict[str, float] | None
    before: float | str | dict[str, float] | None
    tick: int
    revert_if: RevertIf
    cause: str


class ModelAnswer(ReplyForm):
    """The value passed to FINAL. `knob` and `value` are missing or null if nothing should be changed."""

    cause: str = Field(max_length=64)
    evidence: tuple[Evidence, ...] = Field(default=(), max_length=MAX_EVIDENCE)
    knob: str | None = Field(default=None, max_length=120)
    value: float | str | dict[str, float] | None = None
    revert_if: RevertIf | None = None
    confidence: float = Field(ge=0, le=1)


@dataclass(frozen=True)
class Diagnosis:
    """An answer that has passed all checks."""

    cause: str
    """A node of the knowledge graph; "none" for a healthy run."""
    evidence: tuple[Evidence, ...]
    """Evidence with the recomputed figures."""
    knob: str
    """The knob to change, or an empty string if nothing should be changed."""
    value: Value
    revert_if: RevertIf | None
    confidence: float

    @property
    def onset(self) -> int | None:
        """The first tick of the first piece of evidence; None without evidence."""
        return self.evidence[0].from_ if self.evidence else None

    def as_json(self) -> dict[str, Any]:
        return {
            "cause": self.cause,
            "onset": self.onset,
            "evidence": [item.as_json() for item in self.evidence],
            "knob": self.knob or None,
            "value": self.value,
            "revert_if": self.revert_if.model_dump(exclude_none=True) if self.revert_if else None,
            "confidence": self.confidence,
        }


def check_answer(
    answer_value: Any, log: LogContext, causes: Collection[str], knobs: Collection[str] | None = None
) -> Diagnosis:
    """Check the value that was passed to FINAL and return its diagnosis. Raises AnswerRejectedError. The cause must be
    one of the knowledge graph's `causes`. If `knobs` is not None, the knob must be one of them."""
    answer = _parse_answer(answer_value)
    if answer.cause != NONE and answer.cause not in causes:
        raise AnswerRejectedError(
            "unknown_cause", f"the cause {_quote_start(answer.cause)} is not a node of the knowledge graph"
        )
    if answer.cause != NONE and not answer.evidence:
        raise AnswerRejectedError("no_evidence", f"the cause {answer.cause} has no evidence; add a metric's mean")
    evidence = tuple(_recompute(item, log) for item in answer.evidence)
    if answer.revert_if is not None and answer.revert_if.metric not in log.announced_metrics:
        raise AnswerRejectedError(
            "not_announced", f"revert_if names {_quote_start(answer.revert_if.metric)}, which the run does not announce"
        )
    knob = answer.knob or ""
    if not knob and answer.value is not None:
        raise AnswerRejectedError("schema", "the answer has a value but no knob")
    value = _check_value(knob, answer.value, log, knobs) if knob else None
    return Diagnosis(answer.cause, evidence, knob, value, answer.revert_if, answer.confidence)


def compute_evidence(log: LogContext, metric: str, first: int, last: int) -> Evidence:
    """Return a metric's mean from the log as evidence. The model's programs can also call this. Raises
    AnswerRejectedError if the metric is not announced or has no reading in this range of ticks."""
    if metric not in log.announced_metrics:
        raise AnswerRejectedError("not_announced", f"the run does not announce the metric {_quote_start(metric)}")
    readings = log.get_readings(metric, first, last)
    if not readings:
        raise AnswerRejectedError(
            "evidence_differs", f"{metric} has no reading from tick {first} to {last}; the log ends at {log.ticks[-1]}"
        )
    is_finite = all(map(math.isfinite, readings))
    value: float | Literal["nan"] = float(f"{fmean(readings):.6g}") if is_finite else "nan"
    return Evidence.model_validate({"metric": metric, "from": first, "to": last, "value": value})


def _parse_answer(answer_value: Any) -> ModelAnswer:
    try:
        return ModelAnswer.model_validate(_convert_evidence_to_tuple(answer_value))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"])) or "the answer"
        raise AnswerRejectedError(
            "schema", f"invalid answer ({field}: {first['msg']}), errors in total: {error.error_count()}"
        ) from None


def _convert_evidence_to_tuple(answer_value: Any) -> Any:
    """Return the value with evidence as a tuple, which strict validation requires but JSON does not have."""
    if isinstance(answer_value, dict) and isinstance(answer_value.get("evidence"), list):
        return {**answer_value, "evidence": tuple(answer_value["evidence"])}
    return answer_value


def _recompute(claim: Evidence, log: LogContext) -> Evidence:
    """Return the evidence with the figure from the log. Raises AnswerRejectedError if the claimed figure differs."""
    actual = compute_evidence(log, claim.metric, claim.from_, claim.to)
    if isinstance(actual.value, str) or isinstance(claim.value, str):
        matches = actual.value == claim.value
    else:
        readings = log.get_readings(claim.metric, claim.from_, claim.to)
        magnitude = max(abs(actual.value), fmean(map(abs, readings)))  # the mean of a signed metric may be near 0
        matches = abs(claim.value - actual.value) <= TOLERANCE * magnitude + 1e-9
    if not matches:
        raise AnswerRejectedError(
            "evidence_differs",
            f"{claim.metric} from tick {claim.from_} to {claim.to} is {actual.value} in the log, "
            f"but {claim.value} in the answer",
        )
    return actual


def _check_value(knob: str, value: Value, log: LogContext, knobs: Collection[str] | None) -> Value:
    """Return the new value in the knob's form. Raises AnswerRejectedError if the knob must not have this value."""
    spec = next((spec for spec in log.started.actuators if spec.name == knob), None)
    if spec is None:
        raise AnswerRejectedError("not_announced", f"the run does not announce the actuator {_quote_start(knob)}")
    if knobs is not None and knob not in knobs:
        raise AnswerRejectedError(
            "not_allowed", f"{knob} must not be changed; allowed knobs: {', '.join(sorted(knobs))}"
        )
    if spec.kind == "action":
        raise AnswerRejectedError("not_allowed", f"{knob} is an action, which a diagnosis cannot request")
    new_value = coerce_proposal(spec, value)
    if isinstance(new_value, Fault):
        kind: RejectionKind = "schema" if new_value.kind == "type" else "out_of_range"
        raise AnswerRejectedError(kind, f"{knob} = {show(value)}, {new_value.problem}")
    return new_value


def _quote_start(value: object) -> str:
    """Return the beginning of a model's text. Messages must not quote more of it, because it is untrusted."""
    return repr(clean(str(value))[:60])
