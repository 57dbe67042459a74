"""Export a run as a TensorBoard event file: scalars, and a text per decision, receipt, outcome, and so on.

The mark is the file's size. When the export continues, the file is cut to that size, and new records are appended.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from oven_controller.exporting.target import ExportedRun, Target
from oven_runs.log.export_rows import Row


class TensorboardTarget(Target):
    def __init__(self, run: ExportedRun) -> None:
        super().__init__(run)
        self._event = import_module("tensorboard.compat.proto.event_pb2").Event
        self._summary = import_module("tensorboard.compat.proto.summary_pb2").Summary
        self._tensor = import_module("tensorboard.compat.proto.tensor_pb2").TensorProto
        self._writer = import_module("tensorboard.summary.writer.record_writer").RecordWriter
        self._path = run.folder / "events.out.tfevents.0.oven"  # TensorBoard recognises the middle part
        self._size = 0

    @property
    def destination(self) -> str:
        return str(self.run.folder)

    def open(self, seq: int, mark: str) -> int:
        self._size = int(mark or 0)
        try:
            is_shorter = self._path.stat().st_size < self._size
        except FileNotFoundError:
            is_shorter = True
        if is_shorter:  # somebody removed or replaced the file
            self._size = 0
        return seq if self._size else 0

    def write(self, rows: Sequence[Row], events: Sequence[Row]) -> str:
        with self._path.open("r+b" if self._path.exists() else "w+b") as file:
            file.truncate(self._size)
            file.seek(self._size)
            records = self._writer(file)
            if not self._size:
                records.write(
                    self._event(wall_time=rows[0].time.timestamp(), file_version="brain.Event:2").SerializeToString()
                )
            for row in rows:
                summary = self._summary(value=list(self._values(row)))
                event = self._event(wall_time=row.time.timestamp(), step=row.step, summary=summary)
                records.write(event.SerializeToString())
            file.flush()
            os.fsync(file.fileno())
            self._size = file.tell()
        return str(self._size)

    def _values(self, row: Row) -> Iterator[Any]:
        make = self._summary.Value
        for name, value in row.values.items():
            yield make(tag=name, simple_value=value)
        if row.event is None:
            return
        text = f"**{row.event.title}** {row.event.text}" + (f" ({row.event.author})" if row.event.author else "")
        shape = {"dim": [{"size": 1}]}
        tensor = self._tensor(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
        metadata = {"plugin_data": {"plugin_name": "text"}}
        yield make(tag=f"{row.event.kind}/{row.event.subject}", tensor=tensor, metadata=metadata)
