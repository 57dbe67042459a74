"""The messages of a run's log. They are JSON on the wire; `oven-controller schema` prints the JSON Schema.

These rules hold for all of them, and for requests (committee_requests, graph_requests, history_requests):

- Messages are frozen. Bodies have no timestamps and no trace ids; headers carry those.
- Computed floats are rounded to nine significant digits, so that replicas on different machines write the same bytes.
  NaN and infinities are the strings "NaN", "Infinity" and "-Infinity".
- Unknown fields are ignored. An unknown schema version is refused.
- The sender of an agent's or an operator's message is the last token of its subject, never a field, so that it cannot
  be forged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, Literal, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from oven_core.protocol.rules import Rules

VERSION: Final = 1


def _nine_digits(value: float) -> float:
    return float(f"{value:.9g}")


_NOT_FINITE: Final = WithJsonSchema({"anyOf": [{"type": "number"}, {"enum": ["NaN", "Infinity", "-Infinity"]}]})


def _metrics(values: dict[str, float], info: ValidationInfo) -> dict[str, float]:
    """Round the values where they are measured. Reading a message leaves them as they are, which takes a quarter of the
    time."""
    return values if info.mode == "json" else {name: _nine_digits(value) for name, value in values.items()}


def is_default(value: object) -> bool:
    """Return whether a field has its default and is left out of the message. Fields that were added later use it, so
    that older messages keep their bytes."""
    return not value


Real: TypeAlias = Annotated[float, AfterValidator(_nine_digits), _NOT_FINITE]
Confidence: TypeAlias = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), AfterValidator(_nine_digits)]
Metrics: TypeAlias = Annotated[dict[str, Annotated[float, _NOT_FINITE]], AfterValidator(_metrics)]
Value: TypeAlias = Real | str | dict[str, Real] | None
"""A scalar's number, a choice's name, a simplex's shares, an action's argument (the tick of a rollback) or nothing."""
Effect: TypeAlias = Literal["setting", "measures", "copies", "moves_weights", "ends_or_holds", "at_end"]
"""What a change of an actuator does to the training: it sets something, measures or copies the training, moves the
weights to another state, ends or pauses the training, or chooses what it ends with, which shows only at the end."""


class Message(BaseModel):
    """Base of everything that is sent over the bus."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    v: Literal[1] = Field(default=VERSION, description="schema version")

    def wire(self) -> bytes:
        """Return the message's bytes on the bus: JSON, with the fields in their order."""
        return self.model_dump_json().encode()


class ActuatorSpec(BaseModel):
    """A knob that the learner announces, and what a change of it means for the run. Part of RunStarted."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    name: str = Field(description="dotted, e.g. optimizer.lr_scale")
    kind: Literal["scalar", "choice", "simplex", "action"]
    scale: Literal["linear", "log"] = Field(default="linear", description="on which values merge; scalars only")
    unit: str = Field(default="", description='e.g. "× the user\'s schedule"')
    low: Real | None = Field(default=None, description="least value; scalars, and each share of a simplex")
    high: Real | None = Field(default=None, description="greatest value")
    choices: tuple[str, ...] = Field(default=(), description="a choice's values, or a simplex's components")
    value: Value = Field(default=None, description="the value now, read back from the trainer")
    risky: bool = Field(default=False, description="the learner snapshots before it applies a change")
    effect: Effect = Field(
        default="setting",
        description="what a change does to the training: it sets something, measures or copies the training, moves the "
        "weights to another state (a rollback, its undoing), ends or holds the training, or chooses what it ends with. "
        "Only actions have another effect than setting, except that only a choice has the effect at_end",
    )
    moves_own_metric: bool = Field(
        default=False,
        description="a change moves the metric that would judge it, as the reward's weights move the reward: a "
        "held-out metric judges it, and without one agents do not change it",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.effect == "at_end" and self.kind != "choice":
            raise ValueError(f"{self.name} is a {self.kind} with the effect 'at_end', which only a choice has")
        if self.effect not in ("setting", "at_end") and self.kind != "action":
            raise ValueError(
                f"{self.name} is a {self.kind} with the effect {self.effect!r}; only an action has another effect than "
                "'setting'"
            )
        if self.moves_own_metric and not self.has_outcome:
            raise ValueError(
                f"{self.name} has the effect {self.effect!r}, which no metric judges, and moves_own_metric; leave one "
                "of them out"
            )
        return self

    @property
    def intervenes(self) -> bool:
        """Whether a change affects the training now. A measurement, a copy or a choice for the end does not."""
        return self.effect not in ("measures", "copies", "at_end")

    @property
    def moves_weights(self) -> bool:
        """Whether measurements from before a change describe other weights."""
        return self.effect == "moves_weights"

    @property
    def has_outcome(self) -> bool:
        """Whether a metric can judge a change. A choice for the end moves none, so it is never scored."""
        return self.effect in ("setting", "moves_weights")


class MetricSpec(BaseModel):
    """A metric that the learner will publish. Part of RunStarted."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    unit: str = ""
    better: Literal["up", "down", "neither"] = "neither"
    held_out: bool = Field(default=False, description="measured on data that the run never trains on")
    ceiling: Real | None = Field(default=None, description="the best possible value, if one is known")


class Horizon(BaseModel):
    """The length of the run, against which `progress` in observations is measured. Part of RunStarted."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    max_steps: int | None = Field(default=None, description="optimizer steps")
    seconds: float | None = Field(default=None, description="wall clock")
    charge_rollbacks: bool = Field(
        default=False,
        description="the run ends after max_steps gradient steps, including those that rollbacks threw away, so that "
        "runs can be compared at equal cost; false: it ends when step reaches max_steps",
    )

    @property
    def known(self) -> bool:
        """Whether the run has an end, without which `progress` means nothing."""
        return self.max_steps is not None or self.seconds is not None


class LogMessage(Message):
    """A message of a run's log. oven_core.protocol.subjects has the subjects of each."""

    if TYPE_CHECKING:
        type: str  # each class sets its own name, after the fields of its base


class LearnerMessage(LogMessage):
    """A message of the learner. (incarnation, n) is its message id, by which readers skip duplicates."""

    incarnation: int = Field(ge=1, description="counts the learner's starts in this run")
    n: int = Field(ge=0, description="counts the messages of one incarnation")


class RunStarted(LearnerMessage):
    """learner → all. The first event of an incarnation."""

    type: Literal["RunStarted"] = "RunStarted"
    recipe: str
    training: str = Field(
        default="1",
        min_length=1,
        description="which training of the learner's script this is: counted from 1 in the order of their first start, "
        "or as the script names it. Another training has other weights, data and settings",
    )
    tick: int = Field(default=0, ge=0, description="ticks already counted by earlier incarnations")
    step: int = Field(default=0, ge=0, description="optimizer step that the learner starts from")
    horizon: Horizon = Horizon()
    actuators: tuple[ActuatorSpec, ...] = ()
    metrics: tuple[MetricSpec, ...] = ()
    unmeasured: dict[str, str] = Field(
        default_factory=dict, description="metric that is not announced → what it would need, in words"
    )
    rules: Rules = Rules()
    lockstep: bool = Field(default=False, description="the learner waits for StepClosed at every tick")
    mesh_code: str = Field(
        default="", description="hash of the mesh's sources; a replica with another hash refuses to publish"
    )
    versions: dict[str, str] = Field(default_factory=dict, description="package → version")
    reputations: dict[str, Real] = Field(
        default_factory=dict, description="agent → weight at the start; 1 where absent"
    )
    keys: dict[str, str] = Field(
        default_factory=dict,
        description="signer (learner, mesh, each operator's name) → ed25519 public key, base64; empty: none signs",
    )


class RunEnded(LearnerMessage):
    """learner → all. The last event of an incarnation that ended in order."""

    type: Literal["RunEnded"] = "RunEnded"
    reason: Literal["completed", "stopped", "failed"]
    detail: str = ""
    tick: int
    step: int
    metrics: dict[str, Real] = Field(default_factory=dict, description="held-out metrics at the end")
    lockstep_timeouts: int = Field(default=0, description="if above 0, the run is not repeatable")
    dropped_observations: int = Field(default=0, description="lost because the bus was away and the buffer full")


class Observation(LearnerMessage):
    """learner → agents, mesh, monitors. The metrics of one tick. A metric that was not measured is absent."""

    type: Literal["Observation"] = "Observation"
    tick: int = Field(ge=0, description="never decreases")
    step: int = Field(ge=0, description="optimizer step; goes back after a rollback")
    progress: Real = Field(ge=0, le=1, description="max(step / max_steps, elapsed / time budget)")
    metrics: Metrics


class AgentStatus(LogMessage):
    """agent → mesh, monitors. An agent joined, is done with a tick, cannot fire, has a notice for people, or left."""

    type: Literal["AgentStatus"] = "AgentStatus"
    state: Literal["joined", "done", "cannot_fire", "notice", "left"]
    tick: int = Field(default=0, ge=0, description="the newest tick that the agent has handled")
    seen: str = Field(default="", description="the newest ballot that the agent has handled")
    version: str = ""
    needs: tuple[str, ...] = Field(default=(), description="metrics, as patterns")
    moves: tuple[str, ...] = Field(default=(), description="actuators that it may propose for")
    speciality: tuple[str, ...] = Field(default=(), description="actuators on which it alone can be a quorum")
    shadow: bool = Field(default=False, description="its votes are logged and scored, and do not count")
    reason: str = Field(default="", max_length=2000, description="why it cannot fire, or why it left; a notice's text")


class Vote(LogMessage):
    """agent → mesh, monitors. An agent's last vote on a ballot counts."""

    type: Literal["Vote"] = "Vote"
    actuator: str
    ballot: str = Field(default="", description="id of the ballot; empty: the open one, or a new one")
    stance: Literal["propose", "for", "against", "abstain"]
    value: Value = Field(default=None, description="the proposed value")
    tick: int = Field(ge=0, description="the newest tick of the data behind the vote")
    target: str = Field(default="", description="metric that should improve")
    expected_change: Real = Field(default=0.0, description="change of the target, in its unit, within the horizon")
    horizon: int = Field(default=0, ge=0, description="ticks until the change should show")
    confidence: Confidence = Field(description="probability that the change beats doing nothing")
    rationale: str = Field(default="", max_length=2000, description="one sentence with its figures")
    evidence: tuple[str, ...] = Field(default=(), max_length=32, description="e.g. paths in the knowledge graph")
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
    tick: int
    closes_at_tick: int
    eligible: tuple[str, ...] = Field(description="agents that may vote, as at the opening; sorted")


class TallyLine(BaseModel):
    """One agent's part in a decision."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    agent: str
    stance: Literal["propose", "for", "against", "abstain", "silent"]
    value: Value = None
    shadow: bool = Field(default=False, description="logged and scored, but not counted: its weight is 0")
    newcomer: bool = Field(
        default=False,
        description="on probation: without weight, unless only newcomers are for it and a person has to approve",
    )
    confidence: Real = 0.0
    reputation: Real = 1.0
    weight: Real = Field(default=0.0, description="reputation × confidence")
    rationale: str = ""


class Decision(LogMessage):
    """mesh → learner, monitors. The result of a ballot or a command. The learner carries out adopted decisions only. An
    `advised` one passed, and an operator may approve it."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["Decision"] = "Decision"
    id: str = Field(description="sequence of the closing event in 12 digits, a dash, a two-digit index")
    ballot: str
    actuator: str
    verdict: Literal["adopted", "rejected", "advised"]
    value: Value = Field(description="the value to set; of a rejected ballot the proposed one")
    before: Value = Field(default=None, description="the effective value, as far as the mesh knew it")
    reason: str
    tally: tuple[TallyLine, ...]
    tick: int = Field(description="the mesh's tick at closing")
    apply_at_tick: int
    expires_at_tick: int = Field(
        description="after this tick the learner does not apply it; of advice: the last tick for an approval"
    )
    snapshot_first: bool = Field(default=False, description="the change is risky: the learner takes a snapshot first")
    target: str = Field(default="", description="the metric that judges its outcome; empty: none does")
    expected_change: Real = Field(default=0.0, description="change of the target that the leading proposal forecast")
    horizon: int = Field(default=0, ge=0, description="ticks after its receipt in which the change should show")
    command: str = Field(default="", description="the operator's command behind it (set, approve)")
    approves: str = Field(default="", alias="of", description="the advised decision that an approval carries out")
    plan: tuple[str, ...] = Field(
        default=(),
        description="actuators adopted together at this tick, including this one: all changes are applied or none",
    )


class Receipt(LearnerMessage):
    """learner → mesh, agents, monitors. The result of an adopted decision, with the value read back from the trainer;
    or of a command that goes straight to the learner (hold, resume, stop), without a decision."""

    type: Literal["Receipt"] = "Receipt"
    decision_id: str = Field(
        default="",
        description="empty for a command, if the learner held itself, and if it says which weights the run ended with "
        "(run.best)",
    )
    command: str = Field(default="", description="the operator's command that it answers, if any")
    actuator: str
    status: Literal["applied", "noop", "rejected", "skipped", "expired", "unknown"]
    before: Value = None
    after: Value = None
    tick: int
    step: int
    reason: str = ""


class OutcomeLine(BaseModel):
    """One voter's score in an outcome."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    agent: str
    stance: Literal["propose", "for", "against"]
    shadow: bool = False
    confidence: Real
    success: Real = Field(description="0..1: how far the change beat half of this agent's promise, or noise")
    merit: Real = Field(description="−1..1: what moved its reputation")
    before: Real = Field(description="its reputation before")
    after: Real = Field(description="its reputation from now on")


class Outcome(LogMessage):
    """mesh → agents, kg, monitors. The change of the target metric after a receipt, next to its forecast."""

    type: Literal["Outcome"] = "Outcome"
    decision_id: str
    actuator: str
    target: str = Field(description="the metric that judged it")
    withheld: Literal[False] = Field(default=False, description="unused; recorded logs have it, so replay writes it")
    scored: bool = Field(description="whether it shows anything; if not, `reason` says why")
    reason: str
    from_tick: int = Field(description="tick of the receipt")
    tick: int = Field(description="the mesh's tick when the window closed")
    before: Real | None = Field(default=None, description="the target's mean before")
    after: Real | None = Field(default=None, description="and after")
    samples: tuple[int, int] = Field(default=(0, 0), description="measurements before and after")
    gain: Real | None = Field(default=None, description="after − before, in the metric's better direction")
    forecast: Real | None = Field(
        default=None, description="change that the leading proposal forecast, in the same direction"
    )
    noise: Real | None = Field(default=None, description="standard error of the gain")
    control: None = Field(default=None, description="unused; recorded logs have it, so replay writes it")
    beat: Real | None = Field(
        default=None, description="0..1: probability that it beat doing nothing, with which confidences are compared"
    )
    charge: bool = Field(
        default=False,
        description="clear harm, charged to all agents that carried changes since the target was well: `decision_id` "
        "is the outcome's own id, and `actuator` is empty",
    )
    lines: tuple[OutcomeLine, ...] = ()


class StepClosed(LogMessage):
    """mesh → learner, in lockstep. Every live agent whose votes count is done with the tick, and no ballot is open."""

    type: Literal["StepClosed"] = "StepClosed"
    tick: int
