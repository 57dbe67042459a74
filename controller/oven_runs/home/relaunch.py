"""Restart the learner for a rollback: the request file that it writes, and a limit on repeated restarts.

If a model is too large to copy in memory, or is split over several ranks, it rolls back to a checkpoint on disk in a
new process. The learner writes `relaunch.json` into the run's folder and exits with `EXIT_CODE`. `up` and `run --`
restart its command in the same run, with the checkpoint in `RESUME_FROM`. Other launchers, such as Slurm's requeue or a
person with `--resume`, need not pass the checkpoint: the file names it too. The restarted learner removes the file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic

EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h, which means "try again". Slurm requeues jobs with an exit code in slurm.conf's
RequeueExit. Some launchers change the code (torchrun exits with 1), so readers rely on the file instead."""
SUPPORT_VARIABLE = "OVEN_RELAUNCH"
"""Environment variable that a launcher sets if it restarts the learner. Without it, no rollback requests a restart."""
RESUME_FROM = "OVEN_RESUME_FROM"
"""Environment variable of the learner: a checkpoint's folder, `LATEST`, or `START`."""
LATEST = "latest"
"""The run's newest complete checkpoint, or the start if there is none."""
START = "start"
"""The beginning of the script, without a checkpoint."""
MAX_RESTARTS = 3
"""Number of restarts without progress after which an operator has to intervene."""


class Relaunch(BaseModel):
    """The content of relaunch.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    checkpoint: str = Field(description="folder of the checkpoint, or `start`")
    training: str = Field(description="the script's training that it belongs to (RunStarted.training)")
    step: int = Field(ge=0, description="step of the checkpoint")
    reached: int = Field(ge=0, description="the step at which the rollback was decided")
    trained: int = Field(ge=0, description="gradient steps so far, including those undone by rollbacks")
    reason: str = Field(description="one sentence")


def path_in(folder: Path) -> Path:
    """Return the path of relaunch.json in a run's folder."""
    return folder / "relaunch.json"


def write(folder: Path, relaunch: Relaunch) -> None:
    """Request a restart. Raises OSError."""
    write_atomic(path_in(folder), relaunch.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> Relaunch | None:
    """Return the request, if there is one. Raises ConfigError if the file is damaged."""
    path = path_in(folder)
    try:
        return Relaunch.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{path} cannot be read ({reason(error)}); remove it to continue from the newest checkpoint instead"
        ) from error


def remove(folder: Path) -> None:
    """Remove the request."""
    with contextlib.suppress(OSError):
        path_in(folder).unlink(missing_ok=True)


class LearnerRelaunch:
    """Counts the learner's restarts in one stack. Call `next_checkpoint` each time the learner exits."""

    def __init__(self, folder: Path, resume_command: str, report: Callable[[str], None]) -> None:
        """`resume_command` is the command that continues the run later. `report` receives lines for the user."""
        self._folder, self._resume_command, self._report = folder, resume_command, report
        self._training, self._restarts_in_a_row, self._max_reached = "", 0, -1
        self._handled = self._read()  # a request from an earlier stack: the first learner carries it out

    def next_checkpoint(self) -> str | None:
        """Return the checkpoint to continue from, as in RESUME_FROM, or None if the learner did not request a restart.
        A request that was handled before does not count again."""
        request = self._read()
        if request is None or request == self._handled:
            return None
        self._handled = request
        if request.training != self._training:
            self._training, self._max_reached = request.training, -1
        self._restarts_in_a_row = 1 if request.reached > self._max_reached else self._restarts_in_a_row + 1
        self._max_reached = max(self._max_reached, request.reached)
        if self._restarts_in_a_row > MAX_RESTARTS:
            self._report(
                f"{MAX_RESTARTS} rollbacks in a row got no further than step {self._max_reached}: the learner "
                f"is not restarted. When you have found the cause, `{self._resume_command}` continues from "
                f"{request.checkpoint}"
            )
            return None
        self._report(f"{request.reason}; the learner is restarted")
        return request.checkpoint

    def _read(self) -> Relaunch | None:
        try:
            return read(self._folder)
        except ConfigError as error:
            self._report(str(error))
            return None
