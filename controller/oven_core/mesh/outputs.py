"""Outputs of the mesh: what a replica has computed, and whether the log says the same."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field

from oven_core.mesh.actuator_values import clip
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Message, StepClosed
from oven_core.protocol.subjects import kinds_by

OUTPUTS = kinds_by("mesh")
"""Kinds of subjects that the mesh itself writes."""


@dataclass(frozen=True, slots=True)
class Output:
    """What to publish, and where."""

    subject: str
    message: Message
    data: bytes = field(init=False, compare=False, repr=False)
    """The message on the wire, made once: it is published, and compared with what is read back."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.message.wire())


class ReadBack:
    """The log's entries on the mesh's own subjects, held against what this replica computed."""

    def __init__(self, pending: MutableMapping[str, Output]) -> None:
        """`pending`: computed and not read back yet, by subject; what is read back leaves it."""
        self.divergence: str | None = None
        """The first output in the log that this replica would not have written."""
        self._pending = pending
        self._entered: dict[str, int] = {}  # subject → hash of what was read back there; steps need none

    def repeats(self, event: Event, closed_tick: int) -> bool:
        """Whether it says once more, byte for byte, what the mesh has said there before: who can make a server write
        on its subjects can copy what it signed, and that must stop no one."""
        if isinstance(event.body, StepClosed):
            return event.body.tick <= closed_tick and event.subject not in self._pending
        return self._entered.get(event.subject) == hash(event.data)

    def take(self, event: Event) -> None:
        """A new entry."""
        output = self._pending.pop(event.subject, None)
        if not isinstance(event.body, StepClosed):
            self._entered[event.subject] = hash(event.data)
        if self.divergence is not None:
            return
        if output is None:
            self.divergence = f"event {event.seq} on {event.subject} is none that this replica computed"
        elif event.data != output.data:
            logged = clip(event.data.decode(errors="replace"), 2000)
            computed = clip(output.data.decode(), 2000)
            self.divergence = f"event {event.seq} on {event.subject} reads {logged} where this replica has {computed}"
