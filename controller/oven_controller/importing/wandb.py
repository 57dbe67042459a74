"""A Weights & Biases run file, as an offline run leaves it: wandb's own records, read by its package (in no extra).

The file around them is LevelDB's log format (github.com/google/leveldb, doc/log_format.md): blocks of 32 KiB, in them
fragments of 7 bytes (CRC-32, length, kind) and data. wandb had a reader of it until 0.2x; in 0.31 it is part of a Go
program, so the 7 bytes are read here. Its checksum is zlib's, unmasked, over kind and data.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oven_controller.errors import ConfigError
from oven_controller.importing.history import time_of
from oven_controller.importing.rows import STEPS
from oven_controller.importing.source import CUT, Logged, Recording

_MAGIC = b":W&B\xe1\xbe\x00"
_BLOCK, _HEAD = 32 * 1024, struct.Struct("<IHB")
_FULL, _FIRST, _LAST = 1, 2, 4


class WandB:
    summary = "a W&B run folder (wandb/offline-run-…) or its run-….wandb"

    def find(self, source: Path) -> Path | None:
        if source.is_file():
            return source if source.suffix == ".wandb" else None
        files = sorted(source.glob("run-*.wandb"))
        return files[0] if len(files) == 1 else None

    def open(self, path: Path, skipped: Counter[str]) -> Recording:
        try:
            from wandb.proto import wandb_internal_pb2
        except ImportError as error:
            raise ConfigError(
                f"{path} needs the package wandb ({error}): `pip install wandb`; or export the run's history as CSV or "
                "JSONL, which needs none"
            ) from error
        return Recording(_logged(path, wandb_internal_pb2, skipped))


def _logged(path: Path, protocol: Any, skipped: Counter[str]) -> Iterator[Logged]:
    key = ""
    for data in _records(path, skipped):
        entry = protocol.Record.FromString(data)
        if not entry.HasField("history"):
            continue
        items = [(item.key or "/".join(item.nested_key), item.value_json) for item in entry.history.item]
        # A histogram, a table or a picture comes as several values, one of them its type.
        media = {name.rsplit("/", 1)[0] for name, _ in items if name.endswith("/_type")}
        values = {name: _value(text) for name, text in items if name.rsplit("/", 1)[0] not in media}
        key = key or next((name for name in STEPS if name in values), "")
        yield Logged(values.get(key), values | dict.fromkeys(media, "media"), time_of(values))


def _records(path: Path, skipped: Counter[str]) -> Iterator[bytes]:
    """Raises ConfigError on another format, and where a checksum does not hold. What a killed program left of its last
    record is counted."""
    with path.open("rb") as file:
        if file.read(len(_MAGIC)) != _MAGIC:
            raise ConfigError(f"{path} is no W&B run file: it does not begin with {_MAGIC!r}")
        parts: list[bytes] = []
        while True:
            left = _BLOCK - file.tell() % _BLOCK
            if left < _HEAD.size:
                file.seek(left, 1)
            head = file.read(_HEAD.size)
            if len(head) < _HEAD.size:
                break
            crc, length, kind = _HEAD.unpack(head)
            data = file.read(length)
            if len(data) < length:
                parts.append(data)
                break
            if zlib.crc32(data, zlib.crc32(bytes((kind,)))) != crc:
                raise ConfigError(f"{path} is damaged at byte {file.tell() - length}: a checksum does not hold")
            parts = [data] if kind in (_FULL, _FIRST) else [*parts, data]
            if kind in (_FULL, _LAST):
                yield b"".join(parts)
                parts = []
        if parts or head:
            skipped[CUT] += 1


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text


IMPORTER = WandB()
