"""The messages of a run's log. They are JSON on the wire. `oven-controller schema` prints the JSON Schema.

The docstring of a message begins with its writer and its readers, as in "learner → all".
These rules apply to all messages, and to requests (committee_requests, graph_requests, history_requests):

- Messages are frozen. Timestamps and trace ids are in headers, not in bodies.
- Computed floats are rounded to nine significant digits, so that replicas on different machines write the same bytes.
  NaN and the infinities are written as the strings "NaN", "Infinity" and "-Infinity".
- Unknown fields are ignored. An unknown schema version is refused.
- The last token of the subject names the agent or operator that sent the message. No field names the sender, so the
  name cannot be forged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, Self, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, WithJsonSchema, model_validator

from oven_core.protocol.rules import Rules

VERSION: Final = 1


def _round_to_nine_digits(value: float) -> float:
    return float(f"{value:.9g}")


_NUMBER_SCHEMA: Final = WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]})


def _round_metrics(values: dict[str, float], info: ValidationInfo) -> dict[str, float]:
    """Round new measurements, but not those read from JSON.

    The sender has already rounded those. Rounding them again would make decoding two to four times slower."""
    return values if info.mode == "json" else {name: _round_to_nine_digits(value) for name, value in values.items()}


def is_default(value: object) -> bool:
    """Return whether a field has its empty default and is omitted from the message (for `exclude_if`).

    This is for fields that later versions added, so that older messages keep their bytes."""
    return not value


Real: TypeAlias = Annotated[float, AfterValidator(_round_to_nine_digits), _NUMBER_SCHEMA]
Confidence: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(_round_to_nine_digits)]
Metrics: TypeAlias = Annotated[dict[str, Annotated[float, _NUMBER_SCHEMA]], AfterValidator(_round_metrics)]
Value: TypeAlias = Real | str | dict[str, Real] | None
"""A number for a scalar or an action, a name for a choice, shares for a simplex, or nothing."""
Effect: TypeAlias = Literal["setting", "measures", "copies", "moves_weights", "ends_or_holds", "at_end"]
"""The effect of an actuator's change on the run. ActuatorSpec.effect describes the values."""
WITHHELD_PREFIX: Final = "withheld: "
"""Prefix of the notice about a proposal that the SDK did not send, for example during a cool-down."""


class Message(BaseModel):
    """Base class of all messages on the bus."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore", ser_json_inf_nan="strings")

    v: Literal[1] = Field(default=VERSION, description="schema version")

    def wire(self) -> bytes:
        """Encode the message as JSON, with its fields in the declared order."""
        return self.model_dump_json().encode()


class MessagePart(BaseModel):
    """Base class of most objects in the fields of messages."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore")


class ActuatorSpec(BaseModel):
    """A knob that the learner announces, and the effect of changing it. Part of RunStarted."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore", ser_json_inf_nan="strings")

    name: str = Field(description="dotted, e.g. optimizer.lr_scale")
    kind: Literal["scalar", "choice", "simplex", "action"]
    scale: Literal["linear", "log"] = Field(
        default="linear", description="scale on which proposed values are merged; scalars only"
    )
    unit: str = Field(default="", description='e.g. "× the user\'s schedule"')
    low: Real | None = Field(default=None, description="minimum value of a scalar, or of each share of a simplex")
    high: Real | None = Field(default=None, description="maximum value")
    choices: tuple[str, ...] = Field(default=(), description="values of a choice, or components of a simplex")
    value: Value = Field(default=None, description="the current value, read back from the trainer")
    risky: bool = Field(default=False, description="whether the learner takes a snapshot before it applies a change")
    effect: Effect = Field(
        default="setting",
        description="the effect of a change on the run: it changes a setting, takes a measurement, copies the run, "
        "replaces the weights (a rollback or its undo), ends or pauses the run, or selects the weights at the end. "
        "Only a choice may have the effect at_end. Only an action may have the others, except setting",
    )
    moves_own_metric: bool = Field(
        default=False,
        description="whether a change moves the metric that would judge it, as reward weights move the reward. Then a "
        "held-out metric judges the change, and agents cannot make it if the run has none",
    )

    @model_validator(mode="after")
    def _check_consistency(self) -> Self:
        if self.effect == "at_end" and self.kind != "choice":
            raise ValueError(f"{self.name} is a {self.kind} with the effect 'at_end', which only a choice may have")
        if self.effect not in ("setting", "at_end") and self.kind != "action":
            raise ValueError(
                f"{self.name} is a {self.kind} with the effect {self.effect!r}; only an action may have an effect "
                "other than 'setting'"
            )
        if self.moves_own_metric and not self.has_outcome:
            raise ValueError(
                f"{self.name} has moves_own_metric and the effect {self.effect!r}, which no metric judges; remove one "
                "of them"
            )
        return self

    @property
    def intervenes(self) -> bool:
        """Whether a change affects the training at once, unlike a measurement, a copy or a choice of final weights."""
        return self.effect not in ("measures", "copies", "at_end")

    @property
    def moves_weights(self) -> bool:
        """Whether a change replaces the weights, so that earlier measurements describe other weights."""
        return self.effect == "moves_weights"

    @property
    def has_outcome(self) -> bool:
        """Whether a metric can judge a change. A choice of final weights is never scored, for example."""
        return self.effect in ("setting", "moves_weights")


class MetricSpec(MessagePart):
    """A metric that the learner will publish. Part of RunStarted."""

    name: str
    unit: str = ""
    better: Literal["up", "down", "neither"] = "neither"
    held_out: bool = Field(default=False, description="whether it is measured on data that the run never trains on")
    ceiling: Real | None = Field(default=None, description="the best possible value, if one is known")


class Horizon(MessagePart):
    """The planned length of the run. Observation.progress is a fraction of it. Part of RunStarted."""

    max_steps: int | None = Field(default=None, description="optimizer steps")
    seconds: float | None = Field(default=None, description="wall-clock time")
    charge_rollbacks: bool = Field(
        default=False,
        description="true: steps that rollbacks discarded also count towards max_steps, so that runs can be compared "
        "at equal cost; false: the run ends when step reaches max_steps",
    )

    @property
    def is_known(self) -> bool:
        """Whether the run has a planned length, without which `progress` has no meaning."""
        return self.max_steps is not None or self.seconds is not None


class LogMessage(Message):
    """A message in a run's log. oven_core.protocol.subjects lists the subject of each class."""

    if TYPE_CHECKING:
        type: str  # declared by each subclass, so that `type` follows the fields of the base class in the JSON


class LearnerMessage(LogMessage):
    """A message from the learner. The pair (incarnation, n) is its id, by which readers recognise duplicates."""

    incarnation: int = Field(
        ge=1, description="number of times that the learner has started in this run, including this one"
    )
    n: int = Field(ge=0, description="number of the message within the incarnation, from 0")


class RunStarted(LearnerMessage):
    """learner → all. The first event of an incarnation."""

    type: Literal["RunStarted"] = "RunStarted"
    recipe: str
    training: str = Field(
        default="1",
        min_length=1,
        description="name of this training. A script may run several trainings, each with different weights, data and "
        "settings. By default, they are numbered from 1 in the order in which they first started",
    )
    tick: int = Field(default=0, ge=0, description="number of ticks in earlier incarnations")
    step: int = Field(default=0, ge=0, description="optimizer step from which the learner starts")
    horizon: Horizon = Horizon()
    actuators: tuple[ActuatorSpec, ...] = ()
    metrics: tuple[MetricSpec, ...] = ()
    unmeasured: dict[str, str] = Field(
        default_factory=dict, description="metric that is not announced → what measuring it would require"
    )
    rules: Rules = Rules()
    lockstep: bool = Field(default=False, description="whether the learner waits for StepClosed at every tick")
    mesh_code: str = Field(
        default="", description="hash of the mesh's sources; a replica with another hash refuses to publish"
    )
    versions: dict[str, str] = Field(default_factory=dict, description="package → version")
    reputations: dict[str, Real] = Field(
        default_factory=dict, description="agent → reputation at the start; 1 if absent"
    )
    keys: dict[str, str] = Field(
        default_factory=dict,
        description="learner, mesh or an operator's name → ed25519 public key, base64; empty if the run is unsigned",
    )


class RunEnded(LearnerMessage):
    """learner → all. The last event of an incarnation that did not crash."""

    type: Literal["RunEnded"] = "RunEnded"
    reason: Literal["completed", "stopped", "failed"]
    detail: str = ""
    tick: int
    step: int
    metrics: dict[str, Real] = Field(default_factory=dict, description="held-out metrics at the end")
    lockstep_timeouts: int = Field(default=0, description="number of timeouts; above 0, the run is not repeatable")
    dropped_observations: int = Field(
        default=0, description="number of observations lost because the bus was down and the buffer was full"
    )


class Observation(LearnerMessage):
    """learner → agents, mesh, monitors. The metrics of one tick. A metric that was not measured is absent."""

    type: Literal["Observation"] = "Observation"
    tick: int = Field(ge=0, description="never decreases")
    step: int = Field(ge=0, description="optimizer step, which decreases at a rollback")
    progress: Real = Field(ge=0, le=1, description="the larger of step / max_steps and elapsed time / time budget")
    metrics: Metrics


class AgentStatus(LogMessage):
    """agent → mesh, monitors. An agent joined, finished a tick, cannot fire in this run, failed, has a notice for
    people, or left. The mesh does not wait for an agent that cannot fire or failed, until it joins again."""

    type: Literal["AgentStatus"] = "AgentStatus"
    state: Literal["joined", "done", "cannot_fire", "failed", "notice", "left"]
    tick: int = Field(default=0, ge=0, description="the newest tick that the agent has handled")
    seen: str = Field(default="", description="id of the newest ballot that the agent has handled")
    version: str = ""
    needs: tuple[str, ...] = Field(default=(), description="patterns of the metrics that it requires")
    moves: tuple[str, ...] = Field(default=(), description="actuators that it may propose for")
    shadow: bool = Field(default=False, description="whether its votes are logged and scored, but not counted")
    reason: str = Field(
        default="", max_length=2000, description="why it cannot fire, failed or left, or the text of a notice"
    )


class Vote(LogMessage):
    """agent → mesh, monitors. A vote on a ballot. It may open the ballot. Only an agent's last vote counts."""

    type: Literal["Vote"] = "Vote"
    actuator: str
    ballot: str = Field(default="", description="id of the ballot; empty: the actuator's open ballot or a new one")
    stance: Literal["propose", "for", "against", "abstain"]
    value: Value = Field(default=None, description="the proposed value")
    tick: int = Field(ge=0, description="the newest tick of the data behind the vote")
    target: str = Field(default="", description="metric that should improve")
    expected_change: Real = Field(default=0.0, description="change of the target, in its unit, within the horizon")
    horizon: int = Field(default=0, ge=0, description="ticks within which the change should show")
    confidence: Confidence = Field(description="probability that the change beats doing nothing")
    rationale: str = Field(default="", max_length=2000, description="one sentence with figures")
    evidence: tuple[str, ...] = Field(
        default=(),
        max_length=32,
        description='"signal:KIND:METRIC,METRIC" (oven_core.protocol.evidence), "symptom:NAME", or any other text',
    )
    plan: tuple[str, ...] = Field(
        default=(),
        max_length=8,
        description="actuators that the agent wants to change together, including this one: all are adopted or none",
    )


class BallotOpened(LogMessage):
    """mesh → agents, monitors. A ballot on an actuator is open."""

    type: Literal["BallotOpened"] = "BallotOpened"
    id: str
    actuator: str
    proposal: Value
    opened_by: str
    evidence: tuple[str, ...] = Field(
        default=(), exclude_if=is_default, description="the evidence of the vote that opened it"
    )
    tick: int
    closes_at_tick: int
    eligible: tuple[str, ...] = Field(description="agents whose votes count, fixed when the ballot opens; sorted")


class TallyLine(BaseModel):
    """One agent's vote in a decision."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore", ser_json_inf_nan="strings")

    agent: str
    stance: Literal["propose", "for", "against", "abstain", "silent"]
    value: Value = None
    kind: str = Field(default="", exclude_if=is_default, description="kind of the evidence on which the vote rests")
    shadow: bool = Field(default=False, description="whether the vote is logged and scored, but has weight 0")
    newcomer: bool = Field(
        default=False,
        description="whether it is on probation: its vote has weight 0, unless only newcomers support the change and a "
        "person has to approve it",
    )
    confidence: Real = 0.0
    reputation: Real = 1.0
    weight: Real = Field(default=0.0, description="reputation × confidence")
    rationale: str = ""


class Decision(LogMessage):
    """mesh → learner, monitors. The result of a ballot or a command. The learner applies only `adopted` decisions. An
    `advised` decision passed the vote but waits for an operator's approval."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["Decision"] = "Decision"
    id: str = Field(description="12-digit sequence number of the event that caused it, a dash and a two-digit index")
    ballot: str
    actuator: str
    verdict: Literal["adopted", "rejected", "advised"]
    value: Value = Field(description="the value to set, or the proposed value if it was rejected")
    before: Value = Field(default=None, description="the value before the change, if the mesh knew it")
    reason: str
    tally: tuple[TallyLine, ...]
    tick: int = Field(description="the mesh's tick when the ballot closed")
    apply_at_tick: int
    expires_at_tick: int = Field(
        description="last tick at which the learner may apply it, or at which advice can be approved"
    )
    snapshot_first: bool = Field(
        default=False, description="whether the learner takes a snapshot first, because the change is risky"
    )
    target: str = Field(default="", description="the metric that judges its outcome; empty: no metric")
    expected_change: Real = Field(default=0.0, description="change of the target that the leading proposal forecast")
    horizon: int = Field(default=0, ge=0, description="ticks after its receipt in which the change should show")
    command: str = Field(default="", description="id of the operator's command that caused it (set, approve)")
    approves: str = Field(default="", alias="of", description="id of the advised decision that an operator approved")
    plan: tuple[str, ...] = Field(
        default=(),
        description="actuators that are changed together, including this one; all changes are applied or none",
    )


class Receipt(LearnerMessage):
    """learner → mesh, agents, monitors. The result of an adopted decision, with the value read back from the trainer,
    or of a command that the learner handles itself (hold, resume, stop)."""

    type: Literal["Receipt"] = "Receipt"
    decision_id: str = Field(
        default="",
        description="id of the decision; empty for a command, for a pause by the learner itself, and for the receipt "
        "of run.best that records the choice of weights",
    )
    command: str = Field(default="", description="id of the operator's command that it answers, if any")
    actuator: str
    status: Literal["applied", "noop", "rejected", "skipped", "expired", "unknown"]
    before: Value = None
    after: Value = None
    tick: int
    step: int
    reason: str = ""


class OutcomeLine(BaseModel):
    """The score of one voter in an outcome."""

    model_config = ConfigDict(frozen=True, defer_build=True, extra="ignore", ser_json_inf_nan="strings")

    agent: str
    stance: Literal["propose", "for", "against"]
    shadow: bool = False
    confidence: Real
    success: Real = Field(
        description="0..1: how clearly the gain exceeded the required gain, which is the larger of two standard errors "
        "and half of this agent's forecast; 0.5: the gain equalled the required gain"
    )
    merit: Real = Field(description="−1..1: how right its vote was, which changes its reputation")
    before: Real = Field(description="its reputation before the outcome")
    after: Real = Field(description="its reputation after the outcome")


class Outcome(LogMessage):
    """mesh → agents, kg, monitors. The change of the target metric after a receipt, compared with the forecast."""

    type: Literal["Outcome"] = "Outcome"
    decision_id: str
    actuator: str
    target: str = Field(description="the metric that judged the change")
    withheld: Literal[False] = Field(
        default=False, description="unused; kept so that recorded logs replay byte for byte"
    )
    scored: bool = Field(description="whether the change could be judged; if not, `reason` says why")
    reason: str
    from_tick: int = Field(description="tick of the receipt")
    tick: int = Field(description="the mesh's tick when the window closed")
    before: Real | None = Field(default=None, description="mean of the target before the change")
    after: Real | None = Field(default=None, description="mean of the target after the change")
    samples: tuple[int, int] = Field(default=(0, 0), description="numbers of measurements before and after the change")
    gain: Real | None = Field(default=None, description="after − before, in the metric's better direction")
    forecast: Real | None = Field(default=None, description="the gain forecast by the leading proposal")
    noise: Real | None = Field(default=None, description="standard error of the gain")
    control: None = Field(default=None, description="unused; kept so that recorded logs replay byte for byte")
    beat: Real | None = Field(
        default=None,
        description="0..1: probability that the change beat doing nothing; confidences are scored against it",
    )
    charge: bool = Field(
        default=False,
        description="whether this is clear harm, charged to all agents that supported changes since the target was "
        "healthy. Then `decision_id` is the id of the outcome itself, and `actuator` is empty",
    )
    lines: tuple[OutcomeLine, ...] = ()


class StepClosed(LogMessage):
    """mesh → learner, in lockstep. All live agents whose votes count have finished the tick, and no ballot is open."""

    type: Literal["StepClosed"] = "StepClosed"
    tick: int
