"""Export a run to MLflow: metrics, and the events as the artifact table events.json and the newest ones as tags.

The environment chooses the server (MLFLOW_TRACKING_URI) and the experiment (MLFLOW_EXPERIMENT_NAME, by default "oven").
The tag oven.seq has the position. A file store keeps repeated metrics, so after an interruption the first write asks
for the points that MLflow has.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Sequence
from importlib import import_module
from typing import Any, ClassVar, Final

from oven_controller.exporting.target import ExportedRun, Target
from oven_core.errors import ConfigError, reason
from oven_runs.log.export_rows import EVENT_FIELDS, Row

log = logging.getLogger("oven.export")

MAX_METRICS: Final = 1000
"""Maximum number of metrics that MLflow takes in one request."""
MAX_TAG_CHARACTERS: Final = 500
RUN_TAG, SEQ_TAG, TABLE = "oven.run", "oven.seq", "events.json"
_FORBIDDEN: Final = re.compile(r"[^\w\-. /]", re.ASCII)
_REFUSAL: Final = re.compile(r"error code (401|403)\b")


class MlflowTarget(Target):
    interval_s: ClassVar[float] = 10.0

    def __init__(self, run: ExportedRun) -> None:
        super().__init__(run)
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")  # the exporter itself retries
        self._mlflow = import_module("mlflow")
        self._experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", "oven")
        self._client: Any = None
        self._run_id = ""
        self._may_repeat = False  # whether MLflow may have some of the next rows

    @property
    def destination(self) -> str:
        address = re.sub(r"//[^/@]*@", "//", self._mlflow.get_tracking_uri())  # without a password
        return f"{address}, experiment {self._experiment}"

    def open(self, seq: int, mark: str) -> int:
        try:
            return self._open()
        except self._mlflow.MlflowException as error:
            raise self._classified(error) from error

    def _open(self) -> int:
        client = self._client = self._mlflow.MlflowClient()
        experiment = client.get_experiment_by_name(self._experiment)
        experiment_id = experiment.experiment_id if experiment else client.create_experiment(self._experiment)
        query = f"tags.`{RUN_TAG}` = '{self.run.id}'"
        if runs := client.search_runs([experiment_id], query):
            self._run_id, tags, self._may_repeat = runs[0].info.run_id, runs[0].data.tags, True
            client.update_run(self._run_id, status="RUNNING")
            return int(tags.get(SEQ_TAG, 0))
        tables = json.dumps([{"path": TABLE, "type": "table"}])
        tags = {RUN_TAG: self.run.id, "mlflow.loggedArtifacts": tables}
        self._run_id = client.create_run(experiment_id, run_name=self.run.name, tags=tags).info.run_id
        for name, value in self.run.config.items():
            if isinstance(value, str | int | float):
                client.log_param(self._run_id, name, value)
        return 0

    def write(self, rows: Sequence[Row], events: Sequence[Row]) -> str:
        try:
            self._write(rows, events)
        except self._mlflow.MlflowException as error:
            raise self._classified(error) from error
        self._may_repeat = False
        return ""

    def _write(self, rows: Sequence[Row], events: Sequence[Row]) -> None:
        entities = self._mlflow.entities
        points = [
            (_metric_name(name), value, int(row.time.timestamp() * 1000), row.step)
            for row in rows
            for name, value in row.values.items()
        ]
        if self._may_repeat:
            stored = {point for name in {point[0] for point in points} for point in self._stored_points(name)}
            points = [point for point in points if _identity(point) not in stored]
        for start in range(0, len(points), MAX_METRICS):
            metrics = [entities.Metric(*point) for point in points[start : start + MAX_METRICS]]
            self._client.log_batch(self._run_id, metrics=metrics)
        tags = {SEQ_TAG: str(rows[-1].seq)}
        if rows_with_event := [row for row in rows if row.event is not None]:
            self._write_table(events)
            for row in rows_with_event:
                assert row.event is not None
                text = f"step {row.step}: {row.event.title} {row.event.text}"
                tags[f"oven.last_{row.event.kind}"] = text[:MAX_TAG_CHARACTERS]
        self._client.log_batch(self._run_id, tags=[entities.RunTag(name, text) for name, text in tags.items()])

    def _stored_points(self, name: str) -> list[tuple[object, ...]]:
        history = self._client.get_metric_history(self._run_id, name)
        return [_identity((name, point.value, point.timestamp, point.step)) for point in history]

    def _write_table(self, events: Sequence[Row]) -> None:
        """Replace the table. The next one is complete again, so a failure of the artifact store is only logged."""
        columns = ["seq", "time", "tick", "step", *EVENT_FIELDS]
        data = [
            [str(value) if name == "time" else value for name, value in row.event_fields().items()] for row in events
        ]
        try:
            self._client.log_text(self._run_id, json.dumps({"columns": columns, "data": data}), TABLE)
        except Exception as error:
            log.warning("MLflow did not store %s: %s", TABLE, reason(error))

    def close(self, has_ended: bool) -> None:
        if has_ended:
            self._client.set_terminated(self._run_id)

    def _classified(self, error: Exception) -> Exception:
        """Return a ConfigError if another attempt is pointless, else the error itself."""
        if _REFUSAL.search(str(error)):
            return ConfigError(
                f"MLflow refused the credentials ({self.destination}); set MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
            )
        if not self._mlflow.get_tracking_uri().startswith(("http", "databricks")):  # a local store has no outages
            return ConfigError(
                f"MLflow cannot use {self.destination}: {reason(error)}; set MLFLOW_TRACKING_URI to a server, or "
                "install all of MLflow for a local store (`pip install mlflow`)"
            )
        return error


def _metric_name(name: str) -> str:
    """Return the name with only the characters that MLflow accepts."""
    return _FORBIDDEN.sub("_", name)[:250].strip("/")


def _identity(point: tuple[str, float, int, int]) -> tuple[object, ...]:
    return (point[0], repr(float(point[1])), *point[2:])  # as text, because NaN equals nothing
