"""The messages that a replica of the mesh computes, and a check that the log contains the same ones."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field

from oven_core.mesh.actuator_values import clip
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Message, StepClosed
from oven_core.protocol.subjects import kinds_written_by

OUTPUT_KINDS = kinds_written_by("mesh")
"""The kinds of subjects that the mesh itself writes."""


@dataclass(frozen=True, slots=True)
class Output:
    """A message to publish, and its subject."""

    subject: str
    message: Message
    data: bytes = field(init=False, compare=False, repr=False)
    """The encoded message, which is published and compared with the entry in the log."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", self.message.wire())


class ReadBack:
    """Compares the entries on the mesh's subjects in the log with the outputs of this replica."""

    def __init__(self, pending: MutableMapping[str, Output]) -> None:
        """`pending` holds the outputs that are not yet in the log, by subject. `compare` removes them."""
        self.divergence: str | None = None
        """Description of the first output in the log that this replica would not have written, or None."""
        self._pending = pending
        self._entry_hashes: dict[str, int] = {}  # by subject; StepClosed is recognised by its tick

    def repeats(self, event: Event, closed_tick: int) -> bool:
        """Return whether the event repeats an earlier output byte for byte.

        An attacker can make a server write copies of signed messages on the mesh's subjects. Such copies must not stop
        a replica."""
        if isinstance(event.body, StepClosed):
            return event.body.tick <= closed_tick and event.subject not in self._pending
        return self._entry_hashes.get(event.subject) == hash(event.data)

    def compare(self, event: Event) -> None:
        """Compare a new entry with the pending output on the same subject."""
        output = self._pending.pop(event.subject, None)
        if not isinstance(event.body, StepClosed):
            self._entry_hashes[event.subject] = hash(event.data)
        if self.divergence is not None:
            return
        if output is None:
            self.divergence = f"event {event.seq} on {event.subject} was not computed by this replica"
        elif event.data != output.data:
            logged = clip(event.data.decode(errors="replace"), 2000)
            computed = clip(output.data.decode(), 2000)
            self.divergence = f"event {event.seq} on {event.subject} is {logged}, but this replica computed {computed}"
