"""What the learner's process and its link's worker say to each other through their pipes."""

from __future__ import annotations

from dataclasses import dataclass

from oven_core.protocol.messages import LogMessage
from oven_core.security.credentials import Credentials
from oven_learner.link import pipes
from oven_learner.link.link_interface import Make, PendingObservation

GRACE_S = 1.0
"""For the worker to end by itself, once it was told to or the learner is gone."""
BEGIN = "begin"
"""To the worker: the learner takes in decisions from now on."""


@dataclass(frozen=True)
class WorkerConfig:
    """What the worker has to know. `sent`, `logged` and `seen` are for one that takes another's place."""

    url: str
    run: str
    credentials: Credentials | None
    pin: str | None
    """The learner's public key, if known."""
    poll_s: float
    secret: bytes
    folder: str = ""
    """The run's, where what the log did not take is kept; empty: nowhere."""
    machine: bool = False
    """Whether observations carry the machine's readings; a run that is to say the same every time has none."""
    replaces: bool = False
    sent: int = 0
    """A sequence of the log: of what this learner said before it, all that matters is known."""
    logged: int = 0
    """This learner's observations up to there."""
    seen: int = 0
    """The sequence of the last event that the learner was given."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The learner's n-th message on its way, if it is not an observation; those go as atoms. `lost`: observations that
    never got so far."""

    n: int
    lost: int
    make: Make


@dataclass(frozen=True, slots=True)
class Status:
    """How far the worker is."""

    taken: int = 0
    """The last message that it took over."""
    waiting: int = 0
    """Messages that it has and the log does not."""
    dropped: int = 0
    sent: int = 0
    """The sequence of this learner's last message in the log."""
    logged: int = 0
    """This learner's observations up to there."""
    over: bool = False
    """Its last word."""
    kept: int = 0
    """Of those that wait: on the disk, in the run's spool."""


@dataclass(frozen=True, slots=True)
class Closing:
    """The learner's last word: send what is left within so many seconds, and keep the rest."""

    within_s: float


@dataclass(frozen=True, slots=True)
class LogItem:
    """For the learner, from the log."""

    seq: int
    body: LogMessage


@dataclass(frozen=True, slots=True)
class Resumed:
    """The first word of a worker that takes another's place: the log has the learner's messages up to `n`, with so
    many observations."""

    n: int
    logged: int


def packed_observation(n: int, lost: int, observation: PendingObservation) -> bytes:
    """A frame of atoms. Raises ValueError or TypeError for a metric that is not a number."""
    # Numpy's numbers are none to marshal.
    observation.metrics = {name: float(value) for name, value in observation.metrics.items()}
    return pipes.packed_atoms((n, lost, *observation.atoms))


def unpacked_observation(data: bytes) -> PendingObservation:
    """What `packed_observation` has packed."""
    _n, _lost, *atoms = pipes.unpacked(data)
    return PendingObservation(*atoms)
