"""The position of an export beside its run, and the lock that keeps a second exporter away."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, ValidationError

from oven_core.errors import ConfigError
from oven_core.files import write_atomic

FOLDER = "export"
"""Name of the subfolder in the run's folder, with a folder, a state file and a lock per target."""
READY_FILE = "metrics.port"
"""A file in the run's folder with the port of the page for Prometheus. It is written when the page can be read."""


class ExportState(BaseModel):
    """How far an export is. It is saved after the target acknowledged the rows."""

    destination: str = ""
    """Where the rows are. An export to another destination starts from the beginning."""
    seq: int = 0
    """Sequence number of the last exported row."""
    mark: str = ""
    """What the target returned for that row."""


def load(run_folder: Path, target: str) -> ExportState:
    """Load the state, or return an empty one if there is no readable file."""
    try:
        return ExportState.model_validate_json(file(run_folder, target).read_bytes())
    except (OSError, ValidationError):
        return ExportState()


def save(run_folder: Path, target: str, state: ExportState) -> None:
    """Write the state. Raises OSError."""
    write_atomic(file(run_folder, target), state.model_dump_json() + "\n")


def file(run_folder: Path, target: str) -> Path:
    """Return the path of the state file."""
    return run_folder / FOLDER / f"{target}.json"


@contextlib.contextmanager
def lock(run_folder: Path, target: str) -> Iterator[Path]:
    """Keep other exporters of this run to this target away, and return the target's own folder. Raises ConfigError."""
    own_folder = run_folder / FOLDER / target
    own_folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(run_folder / FOLDER / f"{target}.lock", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.pread(descriptor, 32, 0).decode() or "unknown"
            raise ConfigError(
                f"run {run_folder.name!r} is already being exported to {target} by process {pid}; wait until it has "
                "ended, or stop it"
            ) from None
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        yield own_folder
    finally:
        os.close(descriptor)
