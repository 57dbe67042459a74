"""Import TensorBoard event files with TensorBoard's own loader (extra `[import]`).

TensorBoard's EventAccumulator does not fit: it keeps all events in memory, separates the tags and forgets values that a
restart overwrote. TensorBoard's "legacy" loader yields events unchanged. The newer one rewrites each event first and
takes three times as long.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oven_controller.importing.importer import Logged, Recording
from oven_core.errors import ConfigError

_MARK = ".tfevents."


class TensorBoard:
    """Importer of the scalars in event files."""

    summary = "a TensorBoard event file (…tfevents…), or the folder that has them"

    def find(self, source: Path) -> Path | None:
        if source.is_file():
            return source if _MARK in source.name else None
        return source if _files(source) else None

    def open(self, path: Path, skipped: Counter[str], step: str | None = None) -> Recording:
        try:
            from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
        except ImportError as error:
            raise ConfigError(
                f'{path} needs the package tensorboard: {error}; `pip install "oven-controller[import]"`'
            ) from error
        files = [path] if path.is_file() else _files(path)
        return Recording(_logged(files, LegacyEventFileLoader, step))


def _files(folder: Path) -> list[Path]:
    """Return the event files, sorted by the numbers in their names: the time in seconds, then a count.

    Each restart of a training writes another file.
    """
    files = [path for path in folder.iterdir() if _MARK in path.name and path.is_file()]
    return sorted(files, key=lambda path: [part.zfill(20) for part in re.split(r"(\d+)", path.name)])


def _logged(files: list[Path], loader: Any, step: str | None) -> Iterator[Logged]:
    """Yield logged values. `step` is the tag whose values are the steps. Its events are separate, so they are read
    first.
    """
    for path in files:
        steps: dict[int, object] = {}
        if step is not None:
            steps = {entry.step: entry.values[step] for entry in _calls(path, loader) if step in entry.values}
        for entry in _calls(path, loader):
            yield entry if step is None else entry._replace(step=steps.get(entry.step))


def _calls(path: Path, loader: Any) -> Iterator[Any]:
    for event in loader(str(path)).Load():
        if event.HasField("summary"):
            yield Logged(event.step, {value.tag: _scalar(value) for value in event.summary.value}, event.wall_time)


def _scalar(value: Any) -> object:
    """Return a simple value, or TensorFlow's array of one number. For anything else return a text, which is skipped."""
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if value.HasField("tensor") and value.metadata.plugin_data.plugin_name == "scalars":
        from tensorboard.util.tensor_util import make_ndarray

        array = make_ndarray(value.tensor)
        return float(array.item()) if array.size == 1 else "no scalar"
    return "no scalar"


IMPORTER = TensorBoard()
