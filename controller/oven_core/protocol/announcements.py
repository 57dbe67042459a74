"""What the learner announces while a run is under way: an actuator anew, and prompts that were injected."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from oven_core.protocol.messages import ActuatorSpec, LearnerMessage, RunStarted


class ActuatorAnnounced(LearnerMessage):
    """learner → all. An actuator that RunStarted did not have, or one with other choices or bounds; its kind stays.
    From here on it counts as if RunStarted had said so."""

    type: Literal["ActuatorAnnounced"] = "ActuatorAnnounced"
    actuator: ActuatorSpec = Field(description="the whole of it, with the value that is read back now")
    tick: int = Field(ge=0)
    step: int = Field(ge=0)


class PromptsInjected(LearnerMessage):
    """learner → all. Prompts were added to those that training draws. The log has their hashes and no text."""

    type: Literal["PromptsInjected"] = "PromptsInjected"
    by: str = Field(min_length=1, max_length=64, description="who added them")
    why: str = Field(min_length=1, max_length=2000)
    topic: str = Field(description="the topic that draws them")
    hashes: tuple[str, ...] = Field(
        min_length=1, description="of each prompt, in order: BLAKE2b of its JSON, 16 bytes in hexadecimal"
    )
    held: int = Field(ge=0, description="injected prompts that can be drawn from now on")
    evicted: int = Field(default=0, ge=0, description="older ones, or the first of these, that had to make room")
    tick: int = Field(ge=0)
    step: int = Field(ge=0)


def with_announced(run: RunStarted, said: ActuatorAnnounced) -> RunStarted:
    """The run with the actuator in its place, or behind the others; as it was where the kind would be another one."""
    spec, names = said.actuator, [one.name for one in run.actuators]
    if spec.name not in names:
        return run.model_copy(update={"actuators": (*run.actuators, spec)})
    place = names.index(spec.name)
    if run.actuators[place].kind != spec.kind:
        return run
    return run.model_copy(update={"actuators": (*run.actuators[:place], spec, *run.actuators[place + 1 :])})
