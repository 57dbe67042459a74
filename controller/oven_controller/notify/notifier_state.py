"""Load and save the notifier's state: its position in the log and its outboxes."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel, Field, ValidationError

from oven_controller.notify.outbox import Outbox
from oven_controller.notify.saved_addresses import FOLDER
from oven_core.files import write_atomic

FILE_NAME: Final = "cursor.json"


class NotifierState(BaseModel):
    """The state with which a notifier continues after a restart. It contains no secrets."""

    v: Literal[3] = 3
    """Version of the file format."""
    seq: int = 0
    """Sequence number of the last handled event. Its notices are in the outboxes or were sent."""
    recipients: dict[str, Outbox] = Field(default_factory=dict)
    """Outboxes by recipient name."""


def load(run_folder: Path) -> NotifierState | None:
    """Load the state. Return None if there is no readable file. The notifier then skips past events."""
    try:
        return NotifierState.model_validate_json(file(run_folder).read_bytes())
    except (OSError, ValidationError):
        return None


def file(run_folder: Path) -> Path:
    """Return the path of the state file."""
    return run_folder / FOLDER / FILE_NAME


def save(run_folder: Path, state: NotifierState) -> None:
    """Write the state file. Raises OSError."""
    (run_folder / FOLDER).mkdir(mode=0o700, exist_ok=True)
    write_atomic(file(run_folder), state.model_dump_json(), private=True)
