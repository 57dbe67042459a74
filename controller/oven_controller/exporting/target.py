"""The interface of an export target, and the table of targets.

A target gets each row of a run once. If its process is killed after the target stored rows but before the exporter
recorded that, the exporter passes these rows again. `open` and `write` therefore make sure that the target stores no
row twice: by removing rows beyond the recorded position, or by asking the target for the newest row that it has.
"""

from __future__ import annotations

import hashlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.plugins import import_object
from oven_runs.log.export_rows import Row

TARGETS: Final[Mapping[str, str]] = {
    "mlflow": "oven_controller.exporting.to_mlflow:MlflowTarget",
    "parquet": "oven_controller.exporting.to_parquet:ParquetTarget",
    "tensorboard": "oven_controller.exporting.to_tensorboard:TensorboardTarget",
    "trackio": "oven_controller.exporting.to_trackio:TrackioTarget",
    "wandb": "oven_controller.exporting.to_wandb:WandbTarget",
}
"""The class of each target."""


@dataclass(frozen=True)
class ExportedRun:
    """The run, as a target needs to know it."""

    name: str
    created: str
    """Time of its creation, RFC 3339."""
    config: Mapping[str, Any]
    """Its settings."""
    folder: Path
    """The target's own folder beside the run, which exists."""

    @property
    def id(self) -> str:
        """An id for the run in trackers, where runs of other machines may have the same name."""
        digest = hashlib.blake2b(f"{self.name} {self.created}".encode(), digest_size=4).hexdigest()
        return f"{self.name}-{digest}"


class Target(ABC):
    """A destination of exports. All methods are called from one thread at a time, and may block."""

    interval_s: ClassVar[float] = 5.0
    """Seconds for which rows of a live run are collected before they are written."""
    max_rows: ClassVar[int] = 2000
    """Maximum number of rows per write."""

    def __init__(self, run: ExportedRun) -> None:
        """Import the target's package. Raises ConfigError if it is not installed."""
        self.run = run

    @property
    @abstractmethod
    def destination(self) -> str:
        """Where the run goes, for people, and to notice that it goes elsewhere than before. Contains no secret."""

    @abstractmethod
    def open(self, seq: int, mark: str) -> int:
        """Connect, and return the sequence number of the last row that the target has, or 0.

        `seq` and `mark` are the last recorded position: the last row, and what `write` returned. Raises ConfigError if
        trying again is pointless, for example if the credentials are wrong, and any other exception to be called again.
        """

    @abstractmethod
    def write(self, rows: Sequence[Row], events: Sequence[Row]) -> str:
        """Store rows, and return when the target has acknowledged them. Return a mark for `open`, or "".

        `events` are all rows with an event so far, including those in `rows`, for targets that replace whole tables.
        Raises as `open`. After an exception the same rows are passed again."""

    def close(self, has_ended: bool) -> None:
        """Disconnect. `has_ended` says whether the run is over."""


def create_target(name: str, run: ExportedRun) -> Target:
    """Create a target. Raises UnknownNameError, and ConfigError if its package is missing."""
    check_target(name)
    target: Target = import_object("export target", name, TARGETS[name])(run)
    return target


def check_target(name: str) -> None:
    """Raise UnknownNameError if there is no target with this name."""
    if name not in TARGETS:
        raise UnknownNameError("export target", name, TARGETS)


def import_package(module: str, target: str, install: str) -> Any:
    """Import a target's package. Raises ConfigError with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"exporting to {target} needs a package that is not installed ({error.name}): `pip install {install}`"
        ) from None
