"""Export a run to Trackio's local store: metrics, and the events as alerts.

The environment chooses the store (TRACKIO_DIR) and the project (TRACKIO_PROJECT, by default "oven"). Trackio ignores a
row whose id it has, so rows that are passed again change nothing. `trackio sync` copies a project to a Space.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module

from oven_controller.exporting.target import ExportedRun, Target
from oven_runs.log.export_rows import Row


class TrackioTarget(Target):
    def __init__(self, run: ExportedRun) -> None:
        super().__init__(run)
        self._storage = import_module("trackio.sqlite_storage").SQLiteStorage
        self._project = os.environ.get("TRACKIO_PROJECT", "oven")

    @property
    def destination(self) -> str:
        return f"{self._storage.get_project_db_path(self._project)}, run {self.run.name}"

    def open(self, seq: int, mark: str) -> int:
        return seq if self._storage.get_run_config(self._project, self.run.name, self.run.id) else 0

    def write(self, rows: Sequence[Row], events: Sequence[Row]) -> str:
        measured = [row for row in rows if row.values]
        names = {"project": self._project, "run": self.run.name, "run_id": self.run.id}
        created = {"_Created": self.run.created, "_Username": "oven-controller", "_Group": None}
        self._storage.bulk_log(
            **names,
            metrics_list=[dict(row.values) for row in measured],
            steps=[row.step for row in measured],
            timestamps=[row.time.isoformat() for row in measured],
            log_ids=[f"{self.run.id}-{row.seq}" for row in measured],
            config=dict(self.run.config) | created,
        )
        happened = [(row, row.event) for row in rows if row.event is not None]
        self._storage.bulk_alert(
            **names,
            titles=[event.title for _, event in happened],
            texts=[event.text for _, event in happened],
            levels=["warn" if event.kind == "finding" else "info" for _, event in happened],
            steps=[row.step for row, _ in happened],
            timestamps=[row.time.isoformat() for row, _ in happened],
            alert_ids=[f"{self.run.id}-{row.seq}" for row, _ in happened],
        )
        return ""
