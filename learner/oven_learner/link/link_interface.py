"""What a link between the learner and the run's log is, and how its messages are named there."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from oven_core.protocol.messages import LearnerMessage, LogMessage, Observation
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.samples import Parcel

Make = Callable[[], LearnerMessage]


class Link(Protocol):
    """What the client speaks through. `link.process_link` has the real one, `testing` one without a bus."""

    @property
    def dropped(self) -> int:
        """Observations that the log will never have."""

    def open(self) -> ResumeState:
        """Connect; raises OvenError when that cannot be."""

    def begin(self) -> None:
        """Take in decisions from now on."""

    def send(self, make: Make, *, droppable: bool = False) -> None:
        """Hand over the learner's next message (the n-th time its number n), to be made and sent later, in order. What
        makes it can be pickled. The link tells in RunEnded how many observations were dropped. Never blocks, never
        raises."""

    def show(self, make: Parcel) -> None:
        """Hand over a sample of completions, to be made and published elsewhere; no log has it, and it may be dropped.
        Never blocks, never raises."""

    def receive(self) -> LogMessage | None:
        """The next decision, operator command or closed step, if one has come."""

    def close(self, timeout_s: float) -> bool:
        """Send what is left, within the limit. False when something stayed unsent."""


@dataclass(slots=True)
class PendingObservation:
    """An observation that is not made yet."""

    incarnation: int
    n: int
    tick: int
    step: int
    progress: float
    metrics: dict[str, float]

    @property
    def atoms(self) -> tuple[int, int, int, int, float, dict[str, float]]:
        return self.incarnation, self.n, self.tick, self.step, self.progress, self.metrics

    def __call__(self) -> Observation:
        return Observation(
            incarnation=self.incarnation,
            n=self.n,
            tick=self.tick,
            step=self.step,
            progress=self.progress,
            metrics={name: float(value) for name, value in self.metrics.items()},
        )


def message_id(message: LearnerMessage, secret: bytes) -> str:
    """The same however often it is sent, and nothing that others can foresee: a vote that carried it first would have
    the log take this message for a repeat."""
    number = f"{message.incarnation}-{message.n}"
    return f"{number}-{hashlib.blake2b(number.encode(), key=secret, digest_size=8).hexdigest()}"
