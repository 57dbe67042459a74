"""Read the records of TensorBoard event files, without TensorBoard or protobuf.

A file is a sequence of TFRecords: a length, its checksum, data, and their checksum
(tensorflow.org/tutorials/load_data/tfrecord). The data are messages `Event` of protocol buffers, which event.proto,
summary.proto and tensor.proto in tensorboard/compat/proto define. Only scalars are read: the field `simple_value`, and
float tensors of the plugin `scalars`.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from oven_controller.importing.importer import TRUNCATED_ROWS

DAMAGED: Final = "damaged records"
TOO_LARGE: Final = "records above 1 MiB"
"""Reasons for skipping records."""
MAX_RECORD: Final = 1 << 20
"""Maximum size of a record in bytes. Larger ones have pictures, audio, or the graph of the model."""
_HEADER, _CHECKSUM = struct.Struct("<QI"), struct.Struct("<I")
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
_POLYNOMIAL: Final = 0x82F63B78
"""CRC-32C (Castagnoli), with reversed bits."""
_MASK: Final = 0xA282EAD8
_FLOAT_TYPE, _DOUBLE_TYPE = 1, 2
"""Element types of tensors."""


class ScalarEvent(NamedTuple):
    """The summary of one step."""

    step: int
    time: float
    """Seconds since 1970."""
    values: dict[str, float | None]
    """Scalars by tag; None for anything else, such as a picture."""


def _crc_table() -> list[int]:
    table = []
    for crc in range(256):
        for _ in range(8):
            crc = (crc >> 1) ^ (_POLYNOMIAL if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE: Final = _crc_table()


def masked_checksum(data: bytes) -> int:
    """Return the masked CRC-32C that follows data in a TFRecord."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + _MASK) & 0xFFFFFFFF


def read_events(path: Path, skipped: Counter[str]) -> Iterator[ScalarEvent]:
    """Yield the events with a summary. Damaged, cut off and very large records are counted in `skipped`. The file ends
    at a damaged length, because nothing says where the next record begins."""
    for record in _read_records(path, skipped):
        try:
            event = _parse_event(record)
        except (ValueError, IndexError, struct.error):
            skipped[DAMAGED] += 1
            continue
        if event.values:
            yield event


def _read_records(path: Path, skipped: Counter[str]) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        while header := file.read(_HEADER.size):
            if len(header) < _HEADER.size:
                skipped[TRUNCATED_ROWS] += 1
                return
            length, checksum = _HEADER.unpack(header)
            if masked_checksum(header[:8]) != checksum:
                skipped[DAMAGED] += 1
                return
            if file.tell() + length + _CHECKSUM.size > size:
                skipped[TRUNCATED_ROWS] += 1
                return
            if length > MAX_RECORD:
                skipped[TOO_LARGE] += 1
                file.seek(length + _CHECKSUM.size, os.SEEK_CUR)
                continue
            data, (checksum,) = file.read(length), _CHECKSUM.unpack(file.read(_CHECKSUM.size))
            if masked_checksum(data) == checksum:
                yield data
            else:
                skipped[DAMAGED] += 1


def _fields(message: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the number of each field of a message, its value if that is an integer, and otherwise its bytes. Raises
    ValueError or IndexError for a malformed message."""
    position = 0
    while position < len(message):
        key, position = _varint(message, position)
        number, wire_type = key >> 3, key & 7
        if wire_type == 0:
            integer, position = _varint(message, position)
            yield number, integer, b""
            continue
        if wire_type == 2:
            length, position = _varint(message, position)
        else:
            length = {1: 8, 5: 4}.get(wire_type, len(message) + 1)
        content = message[position : position + length]
        if len(content) < length:
            raise ValueError(f"field {number} is cut off, or has the unknown wire type {wire_type}")
        yield number, 0, content
        position += length


def _varint(message: bytes, position: int) -> tuple[int, int]:
    """Return an integer of variable length, and the position after it."""
    integer = shift = 0
    while True:
        byte = message[position]
        position += 1
        integer |= (byte & 0x7F) << shift
        if byte < 0x80:
            return integer, position
        shift += 7


def _parse_event(message: bytes) -> ScalarEvent:
    step, time = 0, 0.0
    values: dict[str, float | None] = {}
    for number, integer, content in _fields(message):
        if number == 1:
            (time,) = _DOUBLE.unpack(content)
        elif number == 2:
            step = integer if integer < 1 << 63 else integer - (1 << 64)
        elif number == 5:
            values |= dict(_parse_value(value) for field, _, value in _fields(content) if field == 1)
    return ScalarEvent(step, time, values)


def _parse_value(message: bytes) -> tuple[str, float | None]:
    """Return the tag and the number of a value of a summary."""
    tag, plugin, scalar, tensor = "", b"", None, b""
    for number, _, content in _fields(message):
        if number == 1:
            tag = content.decode(errors="replace")
        elif number == 2:
            (scalar,) = _FLOAT.unpack(content)
        elif number == 8:
            tensor = content
        elif number == 9:  # metadata; their field 1 is the data of a plugin, and its field 1 is the plugin's name
            plugin = _first(_first(content, 1), 1)
    return tag, _parse_tensor(tensor) if tensor and plugin == b"scalars" else scalar


def _first(message: bytes, number: int) -> bytes:
    """Return the first field with this number, or nothing."""
    return next((content for field, _, content in _fields(message) if field == number), b"")


def _parse_tensor(message: bytes) -> float | None:
    """Return the number in a tensor of one float or double, or None for any other tensor."""
    element_type = next((integer for field, integer, _ in _fields(message) if field == 1), 0)
    number = {_FLOAT_TYPE: _FLOAT, _DOUBLE_TYPE: _DOUBLE}.get(element_type)
    content = _first(message, 4) or _first(message, 5) or _first(message, 6)  # bytes, or a list of floats or doubles
    return float(number.unpack(content)[0]) if number and len(content) == number.size else None
