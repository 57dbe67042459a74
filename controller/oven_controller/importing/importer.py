"""The interface of importers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

TRUNCATED_ROWS: Final = "rows that were cut off"
"""Key for the number of incomplete last rows, which a killed program leaves behind."""


class LogEntry(NamedTuple):
    """The unchanged values from one call of the source's logger. `measured_rows` converts them to measurements."""

    step: object
    values: Mapping[str, object]
    time: float | None = None
    """Seconds since 1970; None if the source has no times."""


@dataclass(frozen=True)
class Recording:
    """An opened source. Its entries can be read only once, in file order."""

    entries: Iterator[LogEntry]
    max_steps: int | None = None
    """The planned number of steps, if known."""
    completed_steps: int | None = None
    """The number of completed steps, if known. The last steps may be missing from the log."""
    step_column: str = "step"
    """The column with the steps, for the user."""


class Importer(Protocol):
    """A function that opens the files of one format, listed in `detection.IMPORTERS`."""

    def __call__(
        self, path: Path, skipped: Counter[str], step: str | None = None, /
    ) -> AbstractContextManager[Recording]:
        """Open the path that `find_importer` returned. `step` is the column that the user chose for the step. Count
        incomplete rows in `skipped`, under TRUNCATED_ROWS. Raises ConfigError for a damaged or empty file, either here
        or while the entries are read."""
        ...
