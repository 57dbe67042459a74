"""Import another program's training logs: detect the format, read the source, and write a run or nothing."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oven_controller.importing.declared_knobs import Knob, announced
from oven_controller.importing.importer import recognise
from oven_controller.importing.rows import Names, rows
from oven_controller.importing.writer import Rows, write
from oven_core.errors import ConfigError
from oven_runs.home.run_folder import IMPORTED, Home


@dataclass(frozen=True, slots=True)
class Source:
    """A fully read source of training logs. Close `rows` when done."""

    format: str
    path: Path
    rows: Rows
    columns: tuple[str, ...]
    """Column names in the source."""
    skipped: Mapping[str, int]

    @property
    def detail(self) -> str:
        """Return the `detail` of RunEnded."""
        return f"imported: {self.format}, {self.path.name}"

    def summary(self, knobs: Iterable[Knob]) -> dict[str, Any]:
        """Return a summary of the source as JSON values."""
        totals = self.rows.totals
        return {
            "source": str(self.path),
            "format": self.format,
            "observations": totals.observations,
            "first_step": totals.first_step,
            "last_step": totals.last_step,
            "max_steps": totals.max_steps,
            "incarnations": totals.incarnations,
            "untimed": totals.observations - totals.timed,
            "metrics": dict(sorted(totals.metrics.items())),
            "actuators": [spec.name for spec in announced(knobs, totals.metrics)],
            "skipped": dict(self.skipped),
            "hints": hints(totals.metrics, self.columns),
        }


def read(source: Path, renamed: Mapping[str, str]) -> Source:
    """Read a source. `renamed`: column → new name.

    Raises ConfigError if it cannot be read, has no measurements, or lacks a column that should be renamed.
    """
    try:
        name, importer, path = recognise(source)
    except OSError as error:
        raise _unusable(error, source) from error
    skipped: Counter[str] = Counter()
    names = Names(renamed)
    try:
        recording = importer.open(path, skipped, names.step)
        measured = rows(recording.logged, skipped, names)
        stored = Rows(measured, max_steps=recording.max_steps, reached=recording.reached, changed=path.stat().st_mtime)
    except OSError as error:
        raise _unusable(error, path) from error
    try:
        names.check(path)
        if not stored.totals.observations:
            cause = ", ".join(f"{count} {kind}" for kind, count in skipped.items()) or "nothing was logged"
            raise ConfigError(f"{path} has no measurement at any step: {cause}")
    except BaseException:
        stored.close()
        raise
    return Source(name, path, stored, tuple(names), skipped)


def import_run(
    source: Path, home: Home, run: str | None, renamed: Mapping[str, str], knobs: Iterable[Knob] = ()
) -> dict[str, Any]:
    """Write a source as a new run. Returns a summary as JSON values.

    Raises ConfigError as `read` does, NameInUseError if the name is in use. After an error no run is left.
    """
    knobs = list(knobs)
    folder = home.create(run, IMPORTED)
    try:
        opened = read(source, renamed)
        with opened.rows:
            summary = opened.summary(knobs)
            write(folder, opened.rows, knobs, opened.detail)
        ended = "completed" if opened.rows.totals.completed else "stopped"
        folder.write_info(folder.info().model_copy(update={"start": opened.format, "embedded": False, "ended": ended}))
    except OSError as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise _unusable(error, folder.path) from error
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return {"run": folder.run, "folder": str(folder.path)} | summary


OBJECTIVES = {"loss": ("loss", "nll", "perplexity", "bits"), "reward": ("reward", "return", "score")}
"""Metrics that agents need, with name parts of columns that may contain them."""


def hints(metrics: Iterable[str], columns: Iterable[str] = ()) -> list[str]:
    """Suggest what to rename if there is neither a reward nor a loss."""
    metrics = sorted(metrics)
    if {"loss", "reward"} & set(metrics):
        return []
    shown = ", ".join(metrics[:8]) + (", …" if len(metrics) > 8 else "")
    lines = [f"there is neither a `loss` nor a `reward`, which most agents need; its columns: {shown}"]
    sources = sorted(set(columns) | set(metrics))
    for objective, parts in OBJECTIVES.items():
        near = [name for name in sources if any(part in name.lower() for part in parts)]
        if near:
            best = min(near, key=lambda name: (name.lower().startswith(("eval", "val")), len(name)))
            lines.append(f"if it is {best}: --rename {best}={objective}")
    return lines if len(lines) > 1 else [*lines, "rename one of them: --rename NAME=loss, or --rename NAME=reward"]


def _unusable(error: OSError, path: Path) -> ConfigError:
    return ConfigError(f"{error.filename or path} cannot be used: {error.strerror or error}")
