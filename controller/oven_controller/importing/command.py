"""One import from end to end: the source is recognised, read and left as a run, or nothing is left."""

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
    """What a training logged, read to its end. Close `rows` when done."""

    format: str
    path: Path
    rows: Rows
    columns: tuple[str, ...]
    """Their names in the source."""
    skipped: Mapping[str, int]

    @property
    def detail(self) -> str:
        """Of RunEnded."""
        return f"imported: {self.format}, {self.path.name}"

    def summary(self, knobs: Iterable[Knob]) -> dict[str, Any]:
        """What is in it, for people and scripts."""
        found = self.rows.found
        return {
            "source": str(self.path),
            "format": self.format,
            "observations": found.observations,
            "first_step": found.first_step,
            "last_step": found.last_step,
            "max_steps": found.max_steps,
            "incarnations": found.incarnations,
            "untimed": found.observations - found.timed,
            "metrics": dict(sorted(found.metrics.items())),
            "actuators": [spec.name for spec in announced(knobs, found.metrics)],
            "skipped": dict(self.skipped),
            "hints": hints(found.metrics, self.columns),
        }


def read(source: Path, renamed: Mapping[str, str]) -> Source:
    """Raises ConfigError where `source` cannot be read, holds no measurement, or lacks a column that was renamed."""
    try:
        name, importer, path = recognise(source)
    except OSError as error:
        raise _unusable(error, source) from error
    skipped: Counter[str] = Counter()
    names = Names(renamed)
    try:
        recording = importer.open(path, skipped, names.step)
        measured = rows(recording.logged, skipped, names)
        found = Rows(measured, max_steps=recording.max_steps, reached=recording.reached, changed=path.stat().st_mtime)
    except OSError as error:
        raise _unusable(error, path) from error
    try:
        names.check(path)
        if not found.found.observations:
            why = ", ".join(f"{count} {what}" for what, count in skipped.items()) or "nothing was logged"
            raise ConfigError(f"{path} holds no measurement at any step: {why}")
    except BaseException:
        found.close()
        raise
    return Source(name, path, found, tuple(names), skipped)


def import_run(
    source: Path, home: Home, run: str | None, renamed: Mapping[str, str], knobs: Iterable[Knob] = ()
) -> dict[str, Any]:
    """What was made of it, for people and scripts. Raises ConfigError as `read` does, NameInUseError where there is a
    run of that name; then no run is left behind."""
    knobs = list(knobs)
    folder = home.create(run, IMPORTED)
    try:
        found = read(source, renamed)
        with found.rows:
            summary = found.summary(knobs)
            write(folder, found.rows, knobs, found.detail)
        ended = "completed" if found.rows.found.completed else "stopped"
        folder.write_info(folder.info().model_copy(update={"start": found.format, "embedded": False, "ended": ended}))
    except OSError as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise _unusable(error, folder.path) from error
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise
    return {"run": folder.run, "folder": str(folder.path)} | summary


OBJECTIVES = {"loss": ("loss", "nll", "perplexity", "bits"), "reward": ("reward", "return", "score")}
"""What agents vote on, and what a column that may be it has in its name."""


def hints(metrics: Iterable[str], columns: Iterable[str] = ()) -> list[str]:
    """What to rename where there is neither reward nor loss; nothing where there is one."""
    metrics = sorted(metrics)
    if {"loss", "reward"} & set(metrics):
        return []
    shown = ", ".join(metrics[:8]) + (", …" if len(metrics) > 8 else "")
    said = [
        f"there is neither a `loss` nor a `reward`, so that most agents have nothing to go by; its columns: {shown}"
    ]
    sources = sorted(set(columns) | set(metrics))
    for called, words in OBJECTIVES.items():
        near = [name for name in sources if any(word in name.lower() for word in words)]
        if near:
            best = min(near, key=lambda name: (name.lower().startswith(("eval", "val")), len(name)))
            said.append(f"if it is {best}: --rename {best}={called}")
    return said if len(said) > 1 else [*said, "say which of them it is: --rename NAME=loss, or --rename NAME=reward"]


def _unusable(error: OSError, path: Path) -> ConfigError:
    return ConfigError(f"{error.filename or path} cannot be used: {error.strerror or error}")
