"""The interface of an export target, and the table of targets.

A target gets each row of a run once. If its process is killed after the target stored rows but before the exporter
recorded that, the exporter passes these rows again. `open` and `write` therefore make sure that the target stores no
row twice: by removing rows beyond the recorded position, or by asking the target for the newest row that it has.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.plugins import import_object
from oven_runs.log.export_rows import Row


class TargetEntry(NamedTuple):
    """The class of a target, and the package that it needs."""

    class_path: str
    module: str
    install: str
    """The argument of `pip install`."""


_PACKAGE: Final = "oven_controller.exporting"
TARGETS: Final[Mapping[str, TargetEntry]] = {
    "mlflow": TargetEntry(f"{_PACKAGE}.to_mlflow:MlflowTarget", "mlflow", "mlflow-skinny"),
    "parquet": TargetEntry(f"{_PACKAGE}.to_parquet:ParquetTarget", "pyarrow", '"oven-controller[kg]"'),
    "tensorboard": TargetEntry(f"{_PACKAGE}.to_tensorboard:TensorboardTarget", "tensorboard", "tensorboard"),
    "trackio": TargetEntry(f"{_PACKAGE}.to_trackio:TrackioTarget", "trackio", "trackio"),
    "wandb": TargetEntry(f"{_PACKAGE}.to_wandb:WandbTarget", "wandb", "wandb"),
}


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
        """Import the target's package, which is installed."""
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
        Raises as `open`. After an exception, `open` is called, and then `write` with the rows that are missing."""

    def close(self, has_ended: bool) -> None:
        """Disconnect. `has_ended` says whether the run is over."""
        del has_ended  # nothing to do by default


def create_target(name: str, run: ExportedRun) -> Target:
    """Create a target. Raises the errors of `check_target`."""
    check_target(name)
    target: Target = import_object("export target", name, TARGETS[name].class_path)(run)
    return target


def check_target(name: str) -> None:
    """Raise UnknownNameError if there is no such target, and ConfigError if its package is not installed."""
    if name not in TARGETS:
        raise UnknownNameError("export target", name, TARGETS)
    entry = TARGETS[name]
    if find_spec(entry.module) is None:
        raise ConfigError(
            f"exporting to {name} needs {entry.module}, which is not installed: `pip install {entry.install}`"
        )
