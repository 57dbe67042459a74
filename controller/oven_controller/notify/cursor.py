"""The notifier's saved state: its position in the log and its outboxes, in a file in the run's folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field, ValidationError

from oven_controller.notify.outbox import Outbox
from oven_controller.notify.saved_addresses import FOLDER
from oven_core.files import write_atomic

NAME: Final = "cursor.json"


class Cursor(BaseModel):
    """The saved state of a notifier, from which it continues after a restart. It has no secrets."""

    v: Literal[3] = 3
    seq: int = 0
    """Sequence number of the last handled event. Notices up to it are in the outboxes or were sent."""
    recipients: dict[str, Outbox] = Field(default_factory=dict)
    """Outboxes by recipient name."""


def load(run: Path) -> Cursor | None:
    """Load the cursor; None if there is no readable file. The notifier then skips past events."""
    try:
        return Cursor.model_validate_json((run / FOLDER / NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def written(run: Path) -> int:
    """Return the time of the last write in ns; 0 if there was none."""
    try:
        return (run / FOLDER / NAME).stat().st_mtime_ns
    except OSError:
        return 0


def save(run: Path, cursor: Cursor) -> None:
    """Write the file. Raises OSError."""
    (run / FOLDER).mkdir(mode=0o700, exist_ok=True)
    write_atomic(run / FOLDER / NAME, cursor.model_dump_json(), private=True)
