"""Messages in which the learner announces a new or changed actuator, or prompts added to the training data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oven_core.protocol.messages import ActuatorSpec, LearnerMessage, RunStarted


class ActuatorAnnounced(LearnerMessage):
    """learner → all. An actuator that RunStarted did not have, or one with other choices or bounds but the same kind.
    From now on it counts as if RunStarted had announced it."""

    type: Literal["ActuatorAnnounced"] = "ActuatorAnnounced"
    actuator: ActuatorSpec = Field(description="the whole spec, with the value read back now")
    tick: int = Field(ge=0)
    step: int = Field(ge=0)


class PromptsInjected(LearnerMessage):
    """learner → all. Prompts were added to those that the training draws. The log has their hashes and no text."""

    type: Literal["PromptsInjected"] = "PromptsInjected"
    by: str = Field(min_length=1, max_length=64, description="who added them")
    why: str = Field(min_length=1, max_length=2000)
    topic: str = Field(description="the topic that draws them")
    hashes: tuple[str, ...] = Field(
        min_length=1, description="of each prompt, in order: BLAKE2b of its JSON, 16 bytes in hexadecimal"
    )
    held: int = Field(ge=0, description="injected prompts that can be drawn from now on")
    evicted: int = Field(
        default=0, ge=0, description="older prompts, or the first of these, that were removed for them"
    )
    tick: int = Field(ge=0)
    step: int = Field(ge=0)


def with_announced(run: RunStarted, announcement: ActuatorAnnounced) -> RunStarted:
    """Return the run with the actuator added or replaced; unchanged if the actuator would become another kind."""
    spec, names = announcement.actuator, [actuator.name for actuator in run.actuators]
    if spec.name not in names:
        return run.model_copy(update={"actuators": (*run.actuators, spec)})
    index = names.index(spec.name)
    if run.actuators[index].kind != spec.kind:
        return run
    return run.model_copy(update={"actuators": (*run.actuators[:index], spec, *run.actuators[index + 1 :])})
