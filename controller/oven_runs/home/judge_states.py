"""Store the results of judges' start-up tests of their endpoints in `judges/<member>.json` in the run's folder."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.files import write_atomic

FOLDER: Final = "judges"


class JudgeState(BaseModel):
    """The result of one test. It never contains text from a provider, a prompt or a completion."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: str = Field(description="time of the test, RFC 3339, UTC")
    provider: str
    model: str
    can_judge: bool
    failure: str = ""
    detail: str = ""
    remedy: str = ""
    lacks: tuple[str, ...] = Field(default=(), description="features that are missing, one sentence each")

    def line(self) -> str:
        """Return the result as one line for people."""
        name = f"{self.provider}/{self.model}"
        if not self.can_judge:
            return f"{name} cannot judge: {self.failure} ({self.detail}); {self.remedy}".rstrip("; ")
        return f"{name}; {'; '.join(self.lacks)}" if self.lacks else name


def write(folder: Path, member: str, fields: dict[str, Any]) -> None:
    """Write the result of a member's test. Raises OSError."""
    values = {name: value for name, value in fields.items() if value is not None}
    state = JudgeState.model_validate(values | {"time": datetime.now(UTC).isoformat(timespec="seconds")})
    (folder / FOLDER).mkdir(exist_ok=True)
    write_atomic(folder / FOLDER / f"{member}.json", state.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> dict[str, JudgeState]:
    """Return the results by member. Unreadable files are skipped."""
    states = {}
    for path in sorted((folder / FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, ValidationError):
            states[path.stem] = JudgeState.model_validate_json(path.read_bytes())
    return states
