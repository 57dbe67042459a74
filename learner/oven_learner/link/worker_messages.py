"""The messages that the learner's process and the link's worker process exchange through pipes."""

from __future__ import annotations

from dataclasses import dataclass

from oven_core.protocol.messages import LogMessage
from oven_core.security.credentials import Credentials
from oven_learner.link import pipes
from oven_learner.link.link_interface import MessageFactory, ObservationFields, to_floats

GRACE_S = 1.0
"""Maximum seconds for the worker to end after the closing message, or after the learner dies."""
BEGIN = "begin"
"""The message that tells the worker to start passing on decisions."""


@dataclass(frozen=True)
class WorkerConfig:
    """The worker's configuration. The last four fields are for a worker that replaces another one."""

    url: str
    run: str
    credentials: Credentials | None
    pin: str | None
    """The learner's public key, if known."""
    poll_s: float
    """Seconds between two polls of a full pipe, and minimum seconds between two wake-ups of the relay."""
    secret: bytes
    """The key from which message ids are computed."""
    folder: str = ""
    """The run's folder, for messages that could not be sent, or an empty string if there is none."""
    reads_machine: bool = False
    """Whether to add memory and GPU readings to observations. They are off for a run that must be reproducible."""
    is_replacement: bool = False
    last_sent: int = 0
    """The sequence number in the log up to which this learner's messages are already known."""
    logged_count: int = 0
    """Number of this learner's observations in the log up to `last_sent`."""
    last_item: int = 0
    """The sequence number of the last event that the learner received."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The learner's n-th message. Observations are sent as plain values instead."""

    n: int
    """The message's number, starting at 1. It counts all messages of this learner."""
    lost_count: int
    """Number of observations that were dropped before this message."""
    factory: MessageFactory


@dataclass(frozen=True, slots=True)
class Status:
    """The worker's progress."""

    last_received: int = 0
    """The number of the last message that the worker received."""
    waiting_count: int = 0
    """Number of messages that the worker has but the log does not."""
    dropped_count: int = 0
    """Number of observations that the worker has dropped."""
    last_sent: int = 0
    """The sequence number of this learner's last message in the log."""
    logged_count: int = 0
    """Number of this learner's observations up to `last_sent`."""
    is_final: bool = False
    """Whether this is the worker's last message."""
    spooled_count: int = 0
    """Number of waiting messages that are on disk, in the run's spool."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The learner's last message. The worker sends the waiting messages within the timeout, and spools the rest."""

    timeout_s: float


@dataclass(frozen=True, slots=True)
class LogItem:
    """An event of the log for the learner."""

    seq: int
    body: LogMessage


@dataclass(frozen=True, slots=True)
class Resumed:
    """The first message of a replacement worker. It tells the learner which of its messages are in the log."""

    n: int
    """The number of the last message in the log."""
    logged_count: int
    """Number of observations in the log."""


def pack_observation(n: int, lost_count: int, fields: ObservationFields) -> bytes:
    """Pack an observation as plain values."""
    *position, metrics = fields
    return pipes.pack_plain((n, lost_count, *position, to_floats(metrics)))  # marshal cannot pack NumPy numbers


def unpack_observation(data: bytes) -> ObservationFields:
    """Unpack the result of `pack_observation`."""
    _n, _lost_count, *fields = pipes.unpack(data)
    return tuple(fields)
