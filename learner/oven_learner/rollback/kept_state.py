"""What a run goes back to: one kept state, and what the client asks of whatever keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One state of a run that can be put back."""

    tick: int
    step: int
    state: Any
    restart: str = ""
    """Where this process cannot put it back itself: how the next one does, in words."""


class Rollback(Protocol):
    """Takes a run back: from copies in memory, or from checkpoints and a restart."""

    def take_if_due(self, tick: int) -> None:
        """Called at every boundary; takes one when it is due."""

    def take(self, tick: int) -> object:
        """An actuator or an operator asks for one."""

    def ensure(self, tick: int) -> None:
        """A risky change comes: there has to be something to go back to. Raises what keeps it from being there."""

    def restore(self, tick: int, now: int) -> Snapshot:
        """At tick `now`: go back to the newest from `tick` or before. Raises LookupError when none is that old."""

    @property
    def undoes(self) -> bool:
        """Whether what a rollback left is kept."""

    def undo(self) -> Snapshot:
        """Go forward again to what the last rollback left. Raises LookupError where nothing was kept."""
