"""Export a run to Weights & Biases: history keys, and the events as the table "events".

The environment chooses account, project, and mode (WANDB_API_KEY, WANDB_ENTITY, WANDB_PROJECT, WANDB_MODE). The log's
sequence number is wandb's step, so wandb itself knows the last row: the server when the run is resumed, or its files in
offline mode, where a run cannot be resumed and each start writes another part. Charts have the training step as their
x axis.
"""

from __future__ import annotations

import os
import re
import struct
import time
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

import psutil

from oven_controller.exporting.target import ExportedRun, Target
from oven_core.errors import ConfigError, reason
from oven_core.terminal_text import shorten
from oven_runs.log.export_rows import EVENT_FIELDS, Row

EARLIER_TIMEOUT_S: Final = 60.0
"""Seconds to wait for the service process of an exporter that was killed. It still sends the last rows."""
_REFUSAL: Final = re.compile(r"api.?key|not logged in|permission|unauthori|401|403", re.IGNORECASE)
_FILE_HEADER_BYTES, _BLOCK_BYTES, _FIRST, _LAST = 7, 32 * 1024, (1, 2), (1, 4)


class WandbTarget(Target):
    interval_s: ClassVar[float] = 15.0

    def __init__(self, run: ExportedRun) -> None:
        super().__init__(run)
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        self._wandb = import_module("wandb")
        self._project = os.environ.get("WANDB_PROJECT", "oven")
        self._live: Any = None

    @property
    def destination(self) -> str:
        mode = os.environ.get("WANDB_MODE", "online")
        return f"wandb ({mode}), project {self._project}, run {self.run.id}"

    def open(self, seq: int, mark: str) -> int:
        self.close(False)
        self._wait_for_earlier_service()
        settings = self._wandb.Settings(
            silent=True, console="off", disable_git=True, save_code=False, init_timeout=30,
            x_disable_stats=True, x_disable_meta=True,
        )  # fmt: skip
        try:
            self._live = self._wandb.init(
                project=self._project, id=self.run.id, name=self.run.name, resume="allow", dir=str(self.run.folder),
                config=dict(self.run.config), settings=settings,
            )  # fmt: skip
        except self._wandb.Error as error:
            self._wandb.teardown()  # otherwise the next attempt fails because the run is in use
            if _REFUSAL.search(str(error)):
                raise ConfigError(
                    f"wandb refused the credentials ({shorten(reason(error), 100)}); set WANDB_API_KEY, run "
                    "`wandb login`, or set WANDB_MODE=offline"
                ) from error
            raise
        self._live.define_metric("*", step_metric="step")
        if self._live.offline:
            return max((_last_step(path) for path in self._files()), default=0)
        return max(0, int(self._live.starting_step) - 1)

    def write(self, rows: Sequence[Row], events: Sequence[Row]) -> str:
        newest_event = next((row for row in reversed(rows) if row.event is not None), None)
        for row in rows:
            values: dict[str, Any] = {**row.values, "step": row.step, "tick": row.tick, "time": row.time.timestamp()}
            if row is newest_event:
                columns = ["seq", "time", "tick", "step", *EVENT_FIELDS]
                data = [list((event.event_fields() | {"time": event.time.isoformat()}).values()) for event in events]
                values["events"] = self._wandb.Table(columns, data)
            self._live.log(values, step=row.seq, commit=True)
        return ""

    def close(self, has_ended: bool) -> None:
        if self._live is not None:
            self._live.finish()
            self._live = None

    def _files(self) -> list[Path]:
        return list((self.run.folder / "wandb").glob(f"*run-*/run-{self.run.id}.wandb"))

    def _wait_for_earlier_service(self) -> None:
        """Wait until no process has the run's files open. Raises RuntimeError after EARLIER_TIMEOUT_S."""
        deadline = time.monotonic() + EARLIER_TIMEOUT_S
        paths = {str(path.resolve()) for path in self._files()}
        while paths and any(paths & _open_paths(process) for process in psutil.process_iter(["name", "ppid"])):
            if time.monotonic() > deadline:
                raise RuntimeError("an earlier wandb process still sends rows")
            time.sleep(0.2)


def _open_paths(process: psutil.Process) -> set[str]:
    try:
        is_own = process.info["ppid"] == os.getpid()  # of a failed attempt
        if is_own or not (process.info["name"] or "").startswith("wandb"):
            return set()
        return {file.path for file in process.open_files()}
    except psutil.Error:
        return set()


def _last_step(path: Path) -> int:
    """Return the largest step in a .wandb file."""
    record = import_module("wandb.proto.wandb_internal_pb2").Record()
    last_step = 0
    for data in read_records(path.read_bytes()):
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            last_step = max(last_step, record.history.step.num)
    return last_step


def read_records(data: bytes) -> Iterator[bytes]:
    """Yield the intact records of a .wandb file, which has the form of LevelDB's logs: blocks of chunks."""
    position, record = _FILE_HEADER_BYTES, b""
    while position + 7 <= len(data):
        block_end = position - position % _BLOCK_BYTES + _BLOCK_BYTES
        _checksum, length, kind = struct.unpack_from("<IHB", data, position)
        if block_end - position < 7 or kind == 0:
            position = block_end
            continue
        chunk, position = data[position + 7 : position + 7 + length], position + 7 + length
        if len(chunk) < length:
            return  # cut off when the process was killed
        record = chunk if kind in _FIRST else record + chunk
        if kind in _LAST:
            yield record
