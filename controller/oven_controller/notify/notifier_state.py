"""Load and save the notifier's state: its position in the log and its outboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field, ValidationError

from oven_controller.notify.outbox import Outbox
from oven_controller.notify.saved_addresses import FOLDER
from oven_core.files import write_atomic

FILE_NAME: Final = "cursor.json"


class Cursor(BaseModel):
    """The saved state of a notifier, with which it continues after a restart. It contains no secrets."""

    v: Literal[3] = 3
    seq: int = 0
    """Sequence number of the last handled event. Its notices are in the outboxes or were sent."""
    recipients: dict[str, Outbox] = Field(default_factory=dict)
    """Outboxes by recipient name."""


def load(run: Path) -> Cursor | None:
    """Load the cursor. Return None if there is no readable file; the notifier then skips past events."""
    try:
        return Cursor.model_validate_json((run / FOLDER / FILE_NAME).read_bytes())
    except (OSError, ValidationError):
        return None


def modified_ns(run: Path) -> int:
    """Return when the file was last written, in ns, or 0 if it does not exist."""
    try:
        return (run / FOLDER / FILE_NAME).stat().st_mtime_ns
    except OSError:
        return 0


def save(run: Path, cursor: Cursor) -> None:
    """Write the cursor file. Raises OSError."""
    (run / FOLDER).mkdir(mode=0o700, exist_ok=True)
    write_atomic(run / FOLDER / FILE_NAME, cursor.model_dump_json(), private=True)
