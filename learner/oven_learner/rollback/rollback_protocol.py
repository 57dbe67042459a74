"""The interfaces through which the client takes snapshots and rolls back to them, and the class of snapshots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state of a run that can be restored."""

    tick: int
    step: int
    state: Any
    restart_note: str = ""
    """How the next process restores the state, for example "starts over". Empty if this process restores it."""


class Rollback(Protocol):
    """Rollback of a run, with snapshots in memory or with checkpoints and a restart."""

    def take_if_due(self, tick: int) -> None:
        """Take a snapshot if one is due. Called at every step boundary."""

    def take(self, tick: int) -> object:
        """Take a snapshot that a decision or an operator has requested."""

    def ensure(self, tick: int) -> None:
        """Make sure that there is a snapshot before a risky change. Raises an error if this is not possible."""

    def distance_problem(self, tick: int, now: int, *, exact: bool) -> str:
        """Return why a rollback from tick `now` to `tick` would go back too far, or an empty string. `exact` means that
        an operator chose the tick. Otherwise an agent chose it, as an estimate, and the rollback may go further."""

    def restore(self, tick: int, now: int) -> Snapshot:
        """At tick `now`, restore the newest snapshot from `tick` or before. Raises LookupError if there is none."""

    @property
    def can_undo(self) -> bool:
        """Whether a rollback can be undone."""

    def undo(self) -> Snapshot:
        """Restore the state before the last rollback. Raises LookupError if there is none."""


class Checkpoints(Protocol):
    """Checkpoints on disk, in addition to snapshots in memory."""

    def take_if_due(self, tick: int) -> None:
        """Request a checkpoint if one is due."""

    def abandon(self, after_tick: int, now: int) -> None:
        """Mark the checkpoints after that tick as abandoned."""
