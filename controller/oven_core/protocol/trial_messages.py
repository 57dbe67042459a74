"""The messages of trials: the order, the steps of its branches, and what they showed."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from oven_core.protocol.messages import LearnerMessage, LogMessage, Metrics, Real, Value


class TrialArm(BaseModel):
    """What one branch of a trial changes, all of it together."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    decisions: tuple[str, ...] = Field(default=(), description="ids of the decisions that it tries; none: the control")
    changes: dict[str, Value] = Field(default_factory=dict, description="actuator → what to set")


class TrialStarted(LogMessage):
    """mesh → learner, agents, monitors. The learner plays the next steps from one state once for each arm, on the same
    batches and random numbers, and goes on with the best."""

    type: Literal["TrialStarted"] = "TrialStarted"
    id: str
    tick: int
    expires_at_tick: int = Field(description="after this tick the learner leaves it undone")
    arms: tuple[TrialArm, ...] = Field(min_length=2, description="the control first")
    steps: int = Field(ge=1, description="optimizer steps of each arm")
    cooldown: int = Field(
        default=0,
        ge=0,
        description="steps of a copy of each arm's end, on a rate that falls to nothing, before it is read; arms that "
        "differ in rate cannot be compared without",
    )
    reading: str = Field(description="held-out metric by which the arms are compared, example by example")
    margin: Real = Field(description="standard errors of the paired difference by which an arm has to beat the control")


class BranchObservation(LearnerMessage):
    """learner → agents, monitors. The gauges of one step of one arm. Those of the arm that is kept come again, as the
    run's observations; nothing else counts these."""

    type: Literal["BranchObservation"] = "BranchObservation"
    trial: str
    arm: int = Field(ge=0, description="index in TrialStarted.arms; 0 is the control")
    tick: int = Field(ge=0, description="the tick that it will be if the arm is kept")
    step: int = Field(ge=0)
    metrics: Metrics


class ArmReading(BaseModel):
    """How one arm of a trial ended."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    mean: Real | None = Field(default=None, description="of the reading over the examples; absent: not read")
    error: Real | None = Field(default=None, description="standard error of that mean")
    examples: int = Field(default=0, ge=0)
    gain: Real | None = Field(
        default=None, description="mean paired difference from the control, in the reading's better direction"
    )
    noise: Real | None = Field(default=None, description="standard error of the gain")
    reason: str = Field(default="", description="why the arm was not played to its end")


class TrialEnded(LearnerMessage):
    """learner → mesh, agents, monitors. What a trial showed, and the arm that the run goes on with."""

    type: Literal["TrialEnded"] = "TrialEnded"
    trial: str
    status: Literal["completed", "interrupted", "refused"]
    kept: int = Field(default=0, ge=0, description="index of the arm; 0: the control, so nothing was changed")
    arms: tuple[ArmReading, ...] = ()
    tick: int = Field(description="at which the branches began")
    step: int
    steps: int = Field(default=0, ge=0, description="gradient steps computed for it, those of the kept arm included")
    extra: int = Field(default=0, ge=0, description="of those, the steps that the run does not go on with")
    seconds: Real = Field(default=0.0, description="wall time from its beginning to its end")
    reason: str = ""
