"""The messages in the pipes between the learner's process and the link's worker process."""

from __future__ import annotations

from dataclasses import dataclass

from oven_core.protocol.messages import LogMessage
from oven_core.security.credentials import Credentials
from oven_learner.link import pipes
from oven_learner.link.link_interface import Make, PendingObservation, floats

GRACE_S = 1.0
"""Time for the worker to end by itself after the end frame, or after the learner has died."""
BEGIN = "begin"
"""Frame to the worker: the learner accepts decisions from now on."""


@dataclass(frozen=True)
class WorkerConfig:
    """The worker's configuration. `sent`, `logged` and `last_item` are for a worker that replaces another."""

    url: str
    run: str
    credentials: Credentials | None
    pin: str | None
    """The learner's public key, if it is known."""
    poll_s: float
    secret: bytes
    folder: str = ""
    """The run's folder, for messages that the log did not take; empty: none."""
    machine: bool = False
    """Whether observations carry memory and GPU readings. A run that must repeat exactly has none."""
    replaces: bool = False
    sent: int = 0
    """A sequence of the log. All relevant messages of this learner before it are known."""
    logged: int = 0
    """This learner's observations up to `sent`."""
    last_item: int = 0
    """The sequence of the last event that the learner received."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The learner's n-th message in transit. Observations travel as plain values instead. `lost` counts the
    observations that were dropped before.
    """

    n: int
    lost: int
    make: Make


@dataclass(frozen=True, slots=True)
class Status:
    """The worker's progress."""

    received: int = 0
    """The last message that the worker received."""
    waiting: int = 0
    """Messages that the worker has and the log does not."""
    dropped: int = 0
    sent: int = 0
    """The sequence of this learner's last message in the log."""
    logged: int = 0
    """This learner's observations up to `sent`."""
    is_last: bool = False
    """Whether this is the worker's last message."""
    spooled: int = 0
    """Waiting messages that are on the disk, in the run's spool."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The learner's last message: send the waiting messages within this time, and spool the rest."""

    within_s: float


@dataclass(frozen=True, slots=True)
class LogItem:
    """An event of the log for the learner."""

    seq: int
    body: LogMessage


@dataclass(frozen=True, slots=True)
class Resumed:
    """The first message of a replacement worker: the log has the learner's messages up to `n`, and this many
    observations."""

    n: int
    logged: int


def packed_observation(n: int, lost: int, observation: PendingObservation) -> bytes:
    """Pack an observation as plain values."""
    o = observation
    metrics = floats(o.metrics)  # marshal takes no NumPy numbers
    return pipes.packed_atoms((n, lost, o.incarnation, o.n, o.tick, o.step, o.progress, metrics))


def unpacked_observation(data: bytes) -> PendingObservation:
    """Unpack the result of `packed_observation`."""
    _n, _lost, *atoms = pipes.unpacked(data)
    return PendingObservation(*atoms)
