"""Where the notifier is: up to which event it has told, and what waits for each recipient. A file in the run's folder,
written whole."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field, ValidationError

from oven_controller.notify.kept_addresses import FOLDER
from oven_controller.notify.pacing import PacerState
from oven_core.files import write_atomic

NAME: Final = "cursor.json"


class Cursor(BaseModel):
    """It holds notices, which have no secret in them, and recipients by the names that logs have."""

    v: Literal[1] = 1
    seq: int = 0
    """Notices of events up to this one are in the pacers, or were sent."""
    recipients: dict[str, PacerState] = Field(default_factory=dict)


def load(run: Path) -> Cursor | None:
    """None where there is none, or none that can be read: then what comes from now on is told."""
    try:
        return Cursor.model_validate_json((run / FOLDER / NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def written(run: Path) -> int:
    """When it was last written, in ns; 0: never."""
    try:
        return (run / FOLDER / NAME).stat().st_mtime_ns
    except OSError:
        return 0


def save(run: Path, cursor: Cursor) -> None:
    """Raises OSError."""
    folder = run / FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    write_atomic(folder / NAME, cursor.model_dump_json(), private=True)
