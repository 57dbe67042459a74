"""What the judges of a run found out about their endpoints when they started: `judges/<member>.json` in its folder."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.files import write_atomic

FOLDER = "judges"


class JudgeState(BaseModel):
    """One probe's outcome. It holds no text of a provider's, a prompt or a completion."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: str = Field(description="of the probe, RFC 3339, UTC")
    provider: str
    model: str
    can_judge: bool
    failure: str = ""
    detail: str = ""
    remedy: str = ""
    lacks: tuple[str, ...] = Field(default=(), description="what was asked for and is not to be had, a sentence each")

    def words(self) -> str:
        """One line."""
        who = f"{self.provider}/{self.model}"
        if not self.can_judge:
            return f"{who} cannot judge: {self.failure} ({self.detail}); {self.remedy}".rstrip("; ")
        return f"{who}; {'; '.join(self.lacks)}" if self.lacks else who


def write(folder: Path, member: str, found: dict[str, Any]) -> None:
    """Raises OSError."""
    values = {key: value for key, value in found.items() if value is not None}
    state = JudgeState.model_validate(values | {"time": datetime.now(UTC).isoformat(timespec="seconds")})
    (folder / FOLDER).mkdir(exist_ok=True)
    write_atomic(folder / FOLDER / f"{member}.json", state.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> dict[str, JudgeState]:
    """By member; without those that cannot be read."""
    found = {}
    for path in sorted((folder / FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, ValidationError):
            found[path.stem] = JudgeState.model_validate_json(path.read_bytes())
    return found
