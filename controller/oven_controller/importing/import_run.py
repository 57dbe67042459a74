"""Import another program's training logs: detect the format, read the source and write a new run."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from oven_controller.importing.declared_knobs import Knob, announced_actuators
from oven_controller.importing.detection import find_importer
from oven_controller.importing.rows import measured_rows
from oven_controller.importing.run_writer import StoredRows, write_log
from oven_core.errors import ConfigError
from oven_runs.home.run_folder import IMPORTED, Home
from oven_runs.home.run_info import Status
from oven_runs.metrics.metric_names import announcement_order, metric_spec
from oven_runs.metrics.objectives import MetricNames

OBJECTIVE_WORDS = {"loss": ("loss", "nll", "perplexity", "bits"), "reward": ("reward", "return", "score")}
"""For each metric that most agents need, words that often occur in the names of columns with its values."""

MAIN_METRICS = ("loss", "reward", "learning_rate", "grad_norm")
POLICY_METRICS = ("entropy", "kl", "completions/mean_length", "completions/clipped_ratio")
"""Metrics whose columns are only named if they have other names."""


@dataclass(frozen=True, slots=True)
class ImportedSource:
    """A fully read source of training logs. Close `rows` when done."""

    format: str
    """Name of the importer that read the source."""
    path: Path
    rows: StoredRows
    columns: tuple[str, ...]
    """Column names in the source."""
    skipped: Mapping[str, int]
    """Number of skipped rows and values, by reason."""
    step_column: str
    """The column with the steps."""
    sources: Mapping[str, str]
    """The column of each metric."""

    @property
    def detail(self) -> str:
        """Text for the field `detail` of RunEnded."""
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
            "untimed": totals.observations - totals.rows_with_time,
            "step_column": self.step_column,
            "columns": self._main_columns(),
            "metrics": dict(sorted(totals.metrics.items())),
            "actuators": [spec.name for spec in announced_actuators(knobs, totals.metrics)],
            "skipped": dict(self.skipped),
            "hints": suggest_renames(totals.metrics, self.columns),
        }

    def _main_columns(self) -> dict[str, str]:
        """Return the columns of the main metrics, of those that were renamed for a policy, and of held-out metrics."""
        names = [name for name in MAIN_METRICS if name in self.sources]
        names += [name for name in POLICY_METRICS if self.sources.get(name, name) != name]
        specs = [metric_spec(name) for name in sorted(self.sources, key=announcement_order)]
        held_out_specs = [spec for spec in specs if spec.held_out]
        names += [spec.name for spec in sorted(held_out_specs, key=lambda spec: spec.better == "neither")]
        return {name: self.sources[name] for name in names}


def read_source(source: Path, renames: Mapping[str, str]) -> ImportedSource:
    """Read a source. `renames` maps columns to their new names. Raises ConfigError if the source is unreadable, has no
    measurements, or lacks a column that should be renamed."""
    try:
        format_name, open_source, path = find_importer(source)
    except OSError as error:
        raise _file_error(error, source) from error
    skipped: Counter[str] = Counter()
    metric_names = MetricNames(renames)
    try:
        with open_source(path, skipped, metric_names.step_column) as recording:
            metric_names.step_column = recording.step_column
            stored_rows = StoredRows(
                measured_rows(recording.entries, skipped, metric_names),
                max_steps=recording.max_steps,
                completed_steps=recording.completed_steps,
                modified_at=path.stat().st_mtime,
                choose_names=metric_names.choose,
            )
    except OSError as error:
        raise _file_error(error, path) from error
    try:
        metric_names.check(path)
        if not stored_rows.totals.observations:
            cause = ", ".join(f"{kind}: {count}" for kind, count in skipped.items()) or "nothing was logged"
            raise ConfigError(f"{path} has no usable measurements ({cause})")
    except BaseException:
        stored_rows.close()
        raise
    return ImportedSource(
        format_name,
        path,
        stored_rows,
        tuple(metric_names.columns),
        skipped,
        recording.step_column,
        metric_names.sources,
    )


def import_run(
    source: Path, home: Home, run: str | None, renames: Mapping[str, str], knobs: Iterable[Knob] = ()
) -> dict[str, Any]:
    """Write a source as a new run and return its summary as JSON values. Raises the errors of `read_source`, and
    NameInUseError if the name is in use. If it raises, no run is left behind."""
    knobs = list(knobs)
    folder = home.create(run, IMPORTED)
    try:
        imported = read_source(source, renames)
        with imported.rows:
            summary = imported.summary(knobs)
            write_log(folder, imported.rows, knobs, imported.detail)
        ended: Status = "completed" if imported.rows.totals.completed else "stopped"
        folder.write_info(replace(folder.info(), start=imported.format, embedded=False, ended=ended))
    except BaseException as error:
        shutil.rmtree(folder.path, ignore_errors=True)
        if isinstance(error, OSError):
            raise _file_error(error, folder.path) from error
        raise
    return {"run": folder.run, "folder": str(folder.path)} | summary


def suggest_renames(metrics: Iterable[str], columns: Iterable[str] = ()) -> list[str]:
    """Return hints about columns to rename if there is neither a reward nor a loss."""
    metrics = sorted(metrics)
    if "loss" in metrics or "reward" in metrics:
        return []
    shown_names = ", ".join(metrics[:8]) + (", …" if len(metrics) > 8 else "")
    problem = f"there is no metric `loss` or `reward`, which most checks need; the metrics are {shown_names}"
    suggestions = []
    for objective, words in OBJECTIVE_WORDS.items():
        matches = [name for name in sorted({*columns, *metrics}) if any(word in name.lower() for word in words)]
        if matches:  # prefer training metrics to held-out ones, and then the shortest name
            best = min(matches, key=lambda name: (name.lower().startswith(("eval", "val")), len(name)))
            suggestions.append(f"if {best} is the {objective}, add --rename {best}={objective}")
    return [problem, *(suggestions or ["rename one of them with --rename NAME=loss or --rename NAME=reward"])]


def _file_error(error: OSError, path: Path) -> ConfigError:
    return ConfigError(f"{error.filename or path}: {error.strerror or error}")
