"""The interface of importers, and the function that finds the importer for a file or folder."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from oven_core.errors import ConfigError
from oven_core.plugins import import_object

TRUNCATED_ROWS: Final = "rows that were cut off"
"""Key for the number of incomplete last rows, which a killed program leaves behind."""
IMPORTERS: Final = {
    "history": "oven_controller.importing.csv_jsonl:IMPORTER",
    "tensorboard": "oven_controller.importing.tensorboard:IMPORTER",
    "trainer_state": "oven_controller.importing.trainer_state:IMPORTER",
    "wandb": "oven_controller.importing.wandb:IMPORTER",
}
"""The importers, by name."""


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


class Importer(Protocol):
    """An importer of one format, listed in IMPORTERS. Call `find` before `open`."""

    summary: str
    """Description of the supported sources for an error message, e.g. "a W&B run folder"."""

    def find(self, source: Path) -> Path | None:
        """Return the file or folder to read for `source`, which exists, or None if `source` has another format."""
        ...

    def open(self, path: Path, skipped: Counter[str], step: str | None = None) -> Recording:
        """Open the path that `find` returned. `step` is the column that the user chose for the step. Count incomplete
        rows in `skipped`, under TRUNCATED_ROWS. Raises ConfigError for a damaged or empty file, either here or while
        the entries are read."""
        ...


def find_importer(source: Path) -> tuple[str, Importer, Path]:
    """Return the name of an importer, the importer, and the path that it reads. Raises ConfigError unless exactly one
    importer can read `source`."""
    if not source.exists():
        raise ConfigError(f"{source} does not exist; give the file or folder that the training wrote")
    importers: dict[str, Importer] = {name: import_object("importer", name, path) for name, path in IMPORTERS.items()}
    matches = [(name, importer, path) for name, importer in importers.items() if (path := importer.find(source))]
    if not matches:
        folders = _readable_folders(source, importers)
        if folders:
            more = ", …" if len(folders) > 5 else ""
            raise ConfigError(f"{source} itself has no log; choose one of {', '.join(folders[:5])}{more}")
        summaries = "; ".join(importer.summary for importer in importers.values())
        raise ConfigError(f"{source} is not in a supported format. Supported: {summaries}")
    if len(matches) > 1:
        paths = ", ".join(str(path) for _, _, path in matches)
        raise ConfigError(f"{source} can be read in more than one way; choose one of {paths}")
    return matches[0]


def _readable_folders(source: Path, importers: Mapping[str, Importer]) -> list[str]:
    """Return the folders in `source` that can be imported, as suggestions for an error message."""
    if not source.is_dir():
        return []
    folders = [path for pattern in ("*/", "*/*/") for path in sorted(source.glob(pattern))]
    return [str(folder) for folder in folders if any(importer.find(folder) for importer in importers.values())]
