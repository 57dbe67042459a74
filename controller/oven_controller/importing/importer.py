"""The protocol of readers, and the choice of the one that reads what a person named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from oven_core.errors import ConfigError
from oven_core.plugins import imported

CUT = "rows that were cut off"
"""A key of what was skipped: the last row of a program that was killed."""
IMPORTERS: Final = {
    "history": "oven_controller.importing.csv_jsonl:IMPORTER",
    "tensorboard": "oven_controller.importing.tensorboard:IMPORTER",
    "trainer_state": "oven_controller.importing.trainer_state:IMPORTER",
    "wandb": "oven_controller.importing.wandb:IMPORTER",
}
"""The importers, by name."""


class Logged(NamedTuple):
    """One call of the source's logger, as it stands there. `rows` makes measurements of it."""

    step: object
    values: Mapping[str, object]
    time: float | None = None
    """Seconds since the epoch; None where the source has none."""


@dataclass(frozen=True)
class Recording:
    """An opened source. `logged` is read once, in the source's own order."""

    logged: Iterator[Logged]
    max_steps: int | None = None
    """How far the training was meant to go, if the source says so."""
    reached: int | None = None
    """How far it came, likewise: the last steps need not have been logged."""


class Importer(Protocol):
    """A reader of one format, listed in IMPORTERS. `find` is called before `open`."""

    summary: str
    """What it reads, for people: "the log history of a Hugging Face trainer"."""

    def find(self, source: Path) -> Path | None:
        """The file or folder that it would read for `source`, an existing path; None: this is not its format."""
        ...

    def open(self, path: Path, skipped: Counter[str], step: str | None = None) -> Recording:
        """What `find` returned, to be read once. `step` is the column with the step, where a person named it. Raises
        ConfigError on a damaged or an empty file, here or while it is read. What it leaves out it counts in `skipped`,
        under a name for people."""
        ...


def recognise(source: Path) -> tuple[str, Importer, Path]:
    """The importer's name, the importer, and what it reads. Raises ConfigError where none knows `source`, or several
    do."""
    if not source.exists():
        raise ConfigError(f"there is no file or folder {source}; name what the training wrote")
    known: dict[str, Importer] = {name: imported("importer", name, target) for name, target in IMPORTERS.items()}
    found = [(name, importer, path) for name, importer in known.items() if (path := importer.find(source)) is not None]
    if not found:
        below = _below(source, known)
        if below:
            raise ConfigError(
                f"there is no log in {source} itself; name one of {', '.join(below[:5])}{', …' * (len(below) > 5)}"
            )
        raise ConfigError(f"{source} is none of: {'; '.join(importer.summary for importer in known.values())}")
    if len(found) > 1:
        raise ConfigError(
            f"{source} can be read as several: {', '.join(str(path) for _, _, path in found)}; name one of them"
        )
    return found[0]


def _below(source: Path, known: Mapping[str, Importer]) -> list[str]:
    """Folders in `source` that could be read: one of them was meant."""
    if not source.is_dir():
        return []
    folders = [path for pattern in ("*/", "*/*/") for path in sorted(source.glob(pattern))]
    return [str(folder) for folder in folders if any(importer.find(folder) for importer in known.values())]
