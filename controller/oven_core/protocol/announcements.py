"""Messages in which the learner announces a new or changed actuator, or prompts added to the training data."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oven_core.protocol.messages import ActuatorSpec, LearnerMessage, RunStarted


class ActuatorAnnounced(LearnerMessage):
    """learner → all. An actuator that is new, or has new choices or bounds. Readers add it to those in RunStarted."""

    type: Literal["ActuatorAnnounced"] = "ActuatorAnnounced"
    actuator: ActuatorSpec = Field(description="the complete spec, with the value as read back from the trainer")
    tick: int = Field(ge=0)
    step: int = Field(ge=0)


class PromptsInjected(LearnerMessage):
    """learner → all. Prompts were added to the training data. The log contains their hashes but not their text."""

    type: Literal["PromptsInjected"] = "PromptsInjected"
    by: str = Field(min_length=1, max_length=64, description="person or agent that added them")
    why: str = Field(min_length=1, max_length=2000)
    topic: str = Field(description="the topic to which they were added")
    hashes: tuple[str, ...] = Field(
        min_length=1, description="hash of each prompt, in order: BLAKE2b of its JSON, 16 bytes in hexadecimal"
    )
    held: int = Field(ge=0, description="number of injected prompts that can now be sampled")
    evicted: int = Field(
        default=0, ge=0, description="number of injected prompts, oldest first, that were removed to make room"
    )
    tick: int = Field(ge=0)
    step: int = Field(ge=0)


def with_announced(run: RunStarted, announcement: ActuatorAnnounced) -> RunStarted:
    """Return `run` with the announced actuator added, or replaced if the announcement does not change its kind."""
    spec = announcement.actuator
    names = [actuator.name for actuator in run.actuators]
    if spec.name not in names:
        return run.model_copy(update={"actuators": (*run.actuators, spec)})
    index = names.index(spec.name)
    if run.actuators[index].kind != spec.kind:
        return run
    return run.model_copy(update={"actuators": (*run.actuators[:index], spec, *run.actuators[index + 1 :])})
