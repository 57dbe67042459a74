"""The interface of a link between the learner and the run's log, and the ids of its messages."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol

from oven_core.errors import reason
from oven_core.protocol.messages import LearnerMessage, LogMessage, Observation, Receipt
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.sample_queue import SampleConverter

log = logging.getLogger("oven.learner")

MessageFactory = Callable[[], LearnerMessage]
"""A function that builds a message. It can be pickled."""
ObservationFields = tuple[int, int, int, int, float, Mapping[str, float]]
"""The arguments of `build_observation`. A plain tuple takes the training thread 1 µs less than a `partial`."""
UnbuiltMessage = MessageFactory | ObservationFields
"""A message of the learner for `build_message`. Only observations may be dropped."""


class Link(Protocol):
    """The client's connection to the log. `testing.FakeLink` implements it without a bus."""

    @property
    def dropped_count(self) -> int:
        """Number of observations that were dropped and will never be in the log."""

    def open(self) -> ResumeState:
        """Connect, and return the state of earlier incarnations. Raises OvenError."""

    def begin(self) -> None:
        """Accept decisions from now on."""

    def send(self, unbuilt: UnbuiltMessage) -> None:
        """Queue the learner's next message, to be built and sent later, in order. The n-th call sends message n.
        RunEnded contains the number of dropped observations. Never blocks and never raises."""

    def observe(self, fields: ObservationFields) -> None:
        """Queue an observation, like `send`. Unless `receive` is called soon, it waits for up to 50 ms."""

    def show(self, convert: SampleConverter) -> None:
        """Queue a sample of completions, to be built and published elsewhere. The sample is not part of the log and may
        be dropped. Never blocks and never raises."""

    def receive(self) -> LogMessage | None:
        """Return the next decision, operator command or closed step, if there is one."""

    def close(self, timeout_s: float) -> bool:
        """Send the remaining messages within the timeout. Return False if some were not sent."""


class SilentLink:
    """A link that sends and receives nothing, for example on every rank except rank 0."""

    dropped_count = 0

    def open(self) -> ResumeState:
        return ResumeState()

    def begin(self) -> None: ...

    def send(self, unbuilt: UnbuiltMessage) -> None: ...

    def observe(self, fields: ObservationFields) -> None:
        self.send(fields)

    def show(self, convert: SampleConverter) -> None: ...

    def receive(self) -> LogMessage | None:
        return None

    def close(self, timeout_s: float) -> bool:
        return True


def build_observation(
    incarnation: int, n: int, tick: int, step: int, progress: float, metrics: Mapping[str, float]
) -> Observation:
    """Build an observation, without the metrics that are not numbers."""
    return Observation(
        incarnation=incarnation, n=n, tick=tick, step=step, progress=progress, metrics=to_floats(metrics)
    )


def build_message(unbuilt: UnbuiltMessage) -> LearnerMessage:
    """Build a message. Raises the factory's errors."""
    return build_observation(*unbuilt) if isinstance(unbuilt, tuple) else unbuilt()


def to_floats(metrics: Mapping[Any, Any]) -> dict[str, float]:
    """Convert the metrics to plain numbers. Drop those that are not numbers, with one warning per name."""
    numbers: dict[str, float] = {}
    for name, value in metrics.items():
        try:
            if not isinstance(name, str):
                raise TypeError("its name is not a string")
            numbers[name] = float(value)
        except Exception as error:
            _warn_once(repr(name)[:100], reason(error)[:200])
    return numbers


@cache
def _warn_once(name: str, cause: str) -> None:
    log.warning("the metric %s is not published, because it is not a number (%s); pass a float", name, cause)


@dataclass(frozen=True, slots=True, eq=False)
class TracedReceipt:
    """A receipt for `Link.send`, with the times when applying the decision began and ended, for traces."""

    receipt: Receipt
    began_ns: int
    """Unix time in ns."""
    ended_ns: int

    def __call__(self) -> Receipt:
        return self.receipt


def message_id(message: LearnerMessage, secret: bytes) -> str:
    """Return the message's id. It is always the same for the same message. Other processes do not know the secret, so
    no agent can use the id first and make the log treat this message as a duplicate."""
    number = f"{message.incarnation}-{message.n}"
    return f"{number}-{hashlib.blake2b(number.encode(), key=secret, digest_size=8).hexdigest()}"
