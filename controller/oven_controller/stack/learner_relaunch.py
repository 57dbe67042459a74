"""Policy of relaunches for a rollback: a learner is not started again for ever from one place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from oven_controller.errors import ConfigError
from oven_controller.runs import relaunch
from oven_controller.runs.relaunch import Bound, Relaunch


class LearnerRelaunch:
    """One stack's. `again` is asked each time that the learner has ended."""

    def __init__(self, folder: Path, resume_command: str, tell: Callable[[str], None]) -> None:
        """`folder`: the run's. `resume_command`: how a person continues with it later. `tell` takes lines for
        people."""
        self._folder, self._resume_command, self._tell = folder, resume_command, tell
        self._bound = Bound()
        self._seen = self._read()  # what an earlier stack left, and the first learner takes up

    def again(self) -> str | None:
        """Where from it is to continue, as relaunch.RESUME_FROM has it; None where it did not ask. A learner that ended
        before it had taken up what was asked for asks for nothing."""
        asked = self._read()
        if asked is None or asked == self._seen:
            return None
        self._seen = asked
        if not self._bound.allows(asked):
            self._tell(
                f"{self._bound.most} rollbacks in a row came no further than step {self._bound.furthest}: the learner "
                f"is not started again. When the cause is found, `{self._resume_command}` continues from "
                f"{asked.checkpoint}"
            )
            return None
        self._tell(f"{asked.reason}; the learner is started again")
        return asked.checkpoint

    def _read(self) -> Relaunch | None:
        try:
            return relaunch.read(self._folder)
        except ConfigError as error:
            self._tell(str(error))
            return None
