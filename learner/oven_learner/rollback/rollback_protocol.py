"""The rollback interface that the client uses, and a saved state of a run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a run that can be restored."""

    tick: int
    step: int
    state: Any
    restart: str = ""
    """If this process cannot restore it: how the next process does, in words."""


class Rollback(Protocol):
    """Rolls a run back, with copies in memory or with checkpoints and a restart."""

    def take_if_due(self, tick: int) -> None:
        """Take a snapshot if one is due. Called at every step boundary."""

    def take(self, tick: int) -> object:
        """Take a snapshot, because a decision or an operator asks for it."""

    def ensure(self, tick: int) -> None:
        """Make sure that there is a snapshot before a risky change. Raises an error if there cannot be one."""

    def too_far(self, tick: int, now: int, *, exact: bool) -> str:
        """Return why a rollback at tick `now` to `tick` would go back too far; empty if it would not. `exact`: an
        operator named the tick. An agent only estimates how far back it has to go."""

    def restore(self, tick: int, now: int) -> Snapshot:
        """Restore, at tick `now`, the newest snapshot taken at or before `tick`. Raises LookupError if there is
        none."""

    @property
    def undoes(self) -> bool:
        """Whether a rollback can be undone."""

    def undo(self) -> Snapshot:
        """Restore the state before the last rollback. Raises LookupError if there is none."""


class Checkpoints(Protocol):
    """Checkpoints on disk in addition to copies in memory."""

    def take_if_due(self, tick: int) -> None: ...

    def abandon(self, after_tick: int, now: int) -> None: ...
