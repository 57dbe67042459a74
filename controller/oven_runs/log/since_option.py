"""Parse the value of `--since`: a step, or a duration back from the newest event."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from oven_core.errors import ConfigError

_UNIT_SECONDS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
MAX_LENGTH: Final = 15
"""Maximum number of characters in a step or duration."""
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
ACCEPTED_FORMS: Final = "a step such as 120, or a duration such as 90s, 30m, 2h or 1d"


@dataclass(frozen=True, slots=True)
class Since:
    """The start of a query: a step, or a number of seconds before the newest event. If both are None, the beginning."""

    step: int | None = None
    seconds: float | None = None

    @classmethod
    def parse(cls, text: str | None) -> Since:
        """Parse a step ("120") or a duration ("30m"). Raises ConfigError."""
        if not text:
            return cls()
        if len(text) <= MAX_LENGTH:
            if text.isascii() and text.isdigit():
                return cls(step=int(text))
            if match := _DURATION.fullmatch(text):
                return cls(seconds=float(match[1]) * _UNIT_SECONDS[match[2]])
        raise ConfigError(f"since {text[:40]!r} is neither a step nor a duration; write {ACCEPTED_FORMS}")

    def includes(self, step: int, time: datetime, newest_time: datetime | None) -> bool:
        """Whether this step or time is at or after the start. `newest_time` is the time of the newest event."""
        if self.step is not None:
            return step >= self.step
        if self.seconds is not None and newest_time is not None:
            return (newest_time - time).total_seconds() <= self.seconds
        return True


BEGINNING: Final = Since()
"""The start of a query about the whole run."""
