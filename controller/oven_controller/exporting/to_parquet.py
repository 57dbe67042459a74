"""Export a run as Parquet files: a folder per table, which pandas, polars and DuckDB read as one table.

The table `observations` has one row per measured value, so that its columns stay the same when a new metric appears.
The table `events` has one row per decision, receipt, outcome, and so on. Each write adds one file per table, whose name
is the sequence number of its last row. Files beyond the recorded position are removed when the export continues.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from oven_controller.exporting.target import ExportedRun, Target
from oven_core.files import atomic_file
from oven_runs.log.export_rows import EVENT_FIELDS, Row

TABLES = ("observations", "events")


class ParquetTarget(Target):
    interval_s: ClassVar[float] = 30.0
    max_rows: ClassVar[int] = 4000

    def __init__(self, run: ExportedRun) -> None:
        super().__init__(run)
        self._arrow, self._parquet = import_module("pyarrow"), import_module("pyarrow.parquet")

    @property
    def destination(self) -> str:
        return str(self.run.folder)

    def open(self, seq: int, mark: str) -> int:
        for table in TABLES:
            for path in (self.run.folder / table).glob("*.partial"):  # of an exporter that was killed
                path.unlink()
        files = [path for table in TABLES for path in (self.run.folder / table).glob("*.parquet")]
        if not any(int(path.stem) == seq for path in files):
            seq = 0  # somebody removed the files
        for path in files:
            if int(path.stem) > seq or not seq:
                path.unlink()
        return seq

    def write(self, rows: Sequence[Row], events: Sequence[Row]) -> str:
        measured = [
            row.position() | {"metric": name, "value": value} for row in rows for name, value in row.values.items()
        ]
        happened = [row.event_fields() for row in rows if row.event is not None]
        text = self._arrow.string()
        columns = {"metric": text, "value": self._arrow.float64()}
        self._write("observations", rows[-1].seq, measured, columns)
        self._write("events", rows[-1].seq, happened, dict.fromkeys(EVENT_FIELDS, text))
        return ""

    def _write(self, table: str, seq: int, rows: list[dict[str, Any]], columns: dict[str, Any]) -> None:
        if not rows:
            return
        folder = self.run.folder / table
        folder.mkdir(exist_ok=True)
        arrow = self._arrow
        position = {"seq": arrow.int64(), "time": arrow.timestamp("us", tz="UTC"), "tick": arrow.int64()}
        schema = arrow.schema(position | {"step": arrow.int64()} | columns)
        with atomic_file(_file(folder, seq)) as out:
            self._parquet.write_table(arrow.Table.from_pylist(rows, schema), out, compression="zstd")


def _file(folder: Path, seq: int) -> Path:
    return folder / f"{seq:012}.parquet"
