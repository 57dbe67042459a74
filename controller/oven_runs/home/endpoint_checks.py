"""Store the result of each judge's start-up check of its endpoint, in `judges/<judge>.json` in the run's folder."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.files import write_atomic

FOLDER: Final = "judges"


class EndpointCheck(BaseModel):
    """The result of one check. It never contains text from a provider, a prompt or a completion."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    time: str = Field(description="time of the check, RFC 3339, UTC")
    provider: str
    model: str
    can_judge: bool
    failure: str = ""
    detail: str = ""
    remedy: str = ""
    missing_features: tuple[str, ...] = Field(default=(), description="one sentence per missing feature")

    def summary(self) -> str:
        """Return a one-line, human-readable summary."""
        name = f"{self.provider}/{self.model}"
        if not self.can_judge:
            return f"{name} cannot judge: {self.failure} ({self.detail}); {self.remedy}".rstrip("; ")
        return f"{name}; {'; '.join(self.missing_features)}" if self.missing_features else name


def write(folder: Path, judge: str, fields: dict[str, Any]) -> None:
    """Write the result of a judge's check. Raises OSError."""
    values = {name: value for name, value in fields.items() if value is not None}
    check = EndpointCheck.model_validate(values | {"time": datetime.now(UTC).isoformat(timespec="seconds")})
    (folder / FOLDER).mkdir(exist_ok=True)
    write_atomic(folder / FOLDER / f"{judge}.json", check.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> dict[str, EndpointCheck]:
    """Return the results by judge. Unreadable files are skipped."""
    checks = {}
    for path in sorted((folder / FOLDER).glob("*.json")):
        with contextlib.suppress(OSError, ValidationError):
            checks[path.stem] = EndpointCheck.model_validate_json(path.read_bytes())
    return checks
