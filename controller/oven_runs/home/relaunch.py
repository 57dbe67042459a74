"""Rollbacks that take a restart: the learner's note for anyone who starts it again, and how often a stack does.

A model too large to be copied in memory, or in parts on several ranks, goes back to a checkpoint on disk, and that
takes a new process. The learner writes `relaunch.json` into the run's folder and ends with `EXIT_CODE`; `up` and
`run --` start its command again in the same run, with `RESUME_FROM` naming the checkpoint. The file says it too, so
that another launcher (Slurm's requeue, a person with `--resume`) need not know it. The learner that continued from it
removes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic

EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: nothing is wrong, try again. Slurm requeues a job that ends with a code listed in
slurm.conf's RequeueExit. Launchers may swallow it (torchrun ends with 1), so the file is what counts."""
OFFERED = "OVEN_RELAUNCH"
"""In the learner's environment: what started it starts it again. Without it no rollback by restart is
announced."""
RESUME_FROM = "OVEN_RESUME_FROM"
"""In the learner's environment: a checkpoint's folder, `LATEST`, or `START`."""
LATEST = "latest"
"""The run's newest complete checkpoint; the start, where there is none."""
START = "start"
"""Where the script begins without any checkpoint."""
IN_A_ROW = 3
"""Relaunches without progress after which a person has to look."""


class Relaunch(BaseModel):
    """relaunch.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    checkpoint: str = Field(description="its folder, or `start`")
    training: str = Field(description="which training of the script it is of (RunStarted.training)")
    step: int = Field(ge=0, description="of the checkpoint")
    reached: int = Field(ge=0, description="the step at which the rollback came")
    trained: int = Field(ge=0, description="gradient steps so far, those that rollbacks threw away included")
    reason: str = Field(description="one sentence")


def path_in(folder: Path) -> Path:
    return folder / "relaunch.json"


def write(folder: Path, relaunch: Relaunch) -> None:
    write_atomic(path_in(folder), relaunch.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> Relaunch | None:
    """None when no one asked for one. Raises ConfigError when the file is damaged."""
    path = path_in(folder)
    try:
        return Relaunch.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{path} cannot be read ({reason(error)}); remove it to continue from the newest checkpoint instead"
        ) from error


def done(folder: Path) -> None:
    with contextlib.suppress(OSError):
        path_in(folder).unlink(missing_ok=True)


@dataclass
class Bound:
    """Ends a run that goes back again and again from the same place: progress is a step further than ever."""

    most: int = IN_A_ROW
    training: str = ""
    in_a_row: int = 0
    furthest: int = -1

    def allows(self, relaunch: Relaunch) -> bool:
        if relaunch.training != self.training:
            self.training, self.furthest = relaunch.training, -1
        if relaunch.reached > self.furthest:
            self.in_a_row = 0
        self.furthest = max(self.furthest, relaunch.reached)
        self.in_a_row += 1
        return self.in_a_row <= self.most


class LearnerRelaunch:
    """One stack's. `again` is asked each time that the learner has ended."""

    def __init__(self, folder: Path, resume_command: str, tell: Callable[[str], None]) -> None:
        """`folder`: the run's. `resume_command`: how a person continues with it later. `tell` takes lines for
        people."""
        self._folder, self._resume_command, self._tell = folder, resume_command, tell
        self._bound = Bound()
        self._seen = self._read()  # what an earlier stack left, and the first learner takes up

    def again(self) -> str | None:
        """Where from it is to continue, as RESUME_FROM has it; None where it did not ask. A learner that ended
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
            return read(self._folder)
        except ConfigError as error:
            self._tell(str(error))
            return None
