"""Import TensorBoard event files. Each restart of a training run adds a file to its folder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from oven_controller.importing.detection import EVENT_FILE_MARKER
from oven_controller.importing.event_records import read_events
from oven_controller.importing.importer import LogEntry, Recording

_NOT_A_SCALAR = "not a scalar"
"""Stands for pictures, histograms and text, which are skipped because they are not numbers."""


@contextmanager
def open_event_files(path: Path, skipped: Counter[str], step: str | None = None) -> Iterator[Recording]:
    """Open the scalars in event files."""
    yield Recording(_read_entries([path] if path.is_file() else _event_files(path), skipped, step))


def _event_files(folder: Path) -> list[Path]:
    """Return the event files, sorted by the numbers in their names: the time in seconds, then a counter."""
    files = [path for path in folder.iterdir() if EVENT_FILE_MARKER in path.name and path.is_file()]
    return sorted(files, key=lambda path: [part.zfill(20) for part in re.split(r"(\d+)", path.name)])


def _read_entries(files: list[Path], skipped: Counter[str], step: str | None) -> Iterator[LogEntry]:
    """Yield the log entries. `step` is the tag that the user chose for the step. Its values are read first."""
    for path in files:
        steps: dict[object, object] = {}
        if step is not None:
            steps = {entry.step: entry.values[step] for entry in _read_file(path, Counter()) if step in entry.values}
        for entry in _read_file(path, skipped):
            yield entry if step is None else entry._replace(step=steps.get(entry.step))


def _read_file(path: Path, skipped: Counter[str]) -> Iterator[LogEntry]:
    for event in read_events(path, skipped):
        values = {tag: _NOT_A_SCALAR if value is None else value for tag, value in event.values.items()}
        yield LogEntry(event.step, values, event.time)
