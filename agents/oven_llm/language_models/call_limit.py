"""How many calls an agent may still make in a run, kept in the run's folder: a restart or a resume counts on."""

from __future__ import annotations

import json
from pathlib import Path

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file, write_atomic

FOLDER = "calls"
"""Of the run's folder."""
FILE_BYTES = 4096
"""Of a count at most; it takes fifty."""


class CallLimit:
    """Raises ConfigError where an earlier count cannot be read: without it the limit would not hold."""

    def __init__(self, run_folder: Path, name: str, most: int) -> None:
        self._path, self.most = run_folder / FOLDER / f"{name}.json", most
        self.made, self.cost_usd = 0, 0.0
        if not self._path.exists():
            return
        data = read_file(self._path, "the count of calls", FILE_BYTES)
        try:
            found = json.loads(data)
            self.made, self.cost_usd = int(found["calls"]), float(found["cost_usd"])
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ConfigError(
                f"{self._path} does not say how many calls were made ({reason(error)}); remove it"
            ) from None

    @property
    def spent(self) -> bool:
        return self.made >= self.most

    def reserve(self) -> None:
        """One call, before it is made. Raises OSError where it cannot be kept; then none may be made."""
        self.made += 1
        self._keep()

    def book(self, cost_usd: float) -> None:
        """What an answer cost, where that is known."""
        self.cost_usd += cost_usd
        self._keep()

    def _keep(self) -> None:
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomic(self._path, json.dumps({"calls": self.made, "cost_usd": self.cost_usd}), private=True)
