"""Non-blocking pipes, and shared numbers, between two processes of the same user."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import marshal
import mmap
import os
import pickle
import struct
import tempfile
from collections import deque
from typing import Any

from oven_core.errors import reason

log = logging.getLogger("oven.learner")

PIPE_BYTES = 1 << 20
"""Requested size of a pipe's buffer, about 1,000 observations. The system may provide less."""
READ_BYTES = 64 << 10
"""Maximum bytes of one read. For larger buffers, malloc maps and unmaps memory at each read."""
_HEADER = struct.Struct("<?I")  # whether the value is packed with marshal, and its length


def pack(value: object) -> bytes:
    """Pack any object. Raises pickle's errors."""
    data = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEADER.pack(False, len(data)) + data


def pack_plain(value: tuple[Any, ...] | dict[str, Any]) -> bytes:
    """Pack numbers, strings, tuples and dicts, ten times faster than `pack`. Raises ValueError for other values."""
    data = marshal.dumps(value, 2)  # later versions look for repeated objects, which doubles the time
    return _HEADER.pack(True, len(data)) + data


def unpack(data: bytes) -> Any:
    is_marshal, length = _HEADER.unpack_from(data)
    body = data[_HEADER.size : _HEADER.size + length]
    return marshal.loads(body) if is_marshal else pickle.loads(body)


class Outlet:
    """The write end of a pipe."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # above this user's limit
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._fd = fd
        self._unwritten = b""
        self._queue: deque[bytes] = deque()

    def put(self, data: bytes) -> bool:
        """Write `data`. If only a part fits, the next call writes the rest. Return False if nothing was written,
        because the pipe is full or has no reader."""
        return self.flush() and self._begin(data)

    @property
    def is_idle(self) -> bool:
        """Whether all data has been written."""
        return not self._unwritten and not self._queue

    def post(self, data: bytes) -> None:
        """Write `data` now, or in a later `flush` if the pipe is full."""
        self._queue.append(data)
        self.flush()

    def flush(self) -> bool:
        """Write the queued data. Return whether everything is written."""
        if self._unwritten:
            self._unwritten = self._write(self._unwritten)
        while self._queue and not self._unwritten and self._begin(self._queue[0]):
            self._queue.popleft()
        return self.is_idle

    def close(self) -> None:
        _close(self._fd)
        self._fd = -1

    def _begin(self, data: bytes) -> bool:
        """Write `data`, or the part that fits, and keep the rest for later. Return False if nothing was written."""
        rest = self._write(data)
        if len(rest) == len(data):
            return False
        self._unwritten = rest
        return True

    def _write(self, data: bytes) -> bytes:
        """Return the part of `data` that could not be written now."""
        try:
            return data[os.write(self._fd, data) :]
        except OSError:  # the pipe is full, or has no reader
            return data


class Inlet:
    """The read end of a pipe."""

    def __init__(self, fd: int) -> None:
        """With a negative `fd`, the inlet never receives anything."""
        if fd >= 0:
            os.set_blocking(fd, False)
        self.fd = fd
        self.is_exhausted = False
        """Whether the other end is closed and everything has been read."""
        self._buffer = bytearray()

    def take(self) -> list[Any]:
        """Return all complete values that have arrived, in order."""
        try:
            while data := os.read(self.fd, READ_BYTES):
                self._buffer += data
                if len(data) < READ_BYTES:
                    break
            self.is_exhausted = not data
        except BlockingIOError:
            pass
        except OSError:
            self.is_exhausted = True
        return self._unpack_buffer() if self._buffer else []

    def close(self) -> None:
        _close(self.fd)
        self.fd = -1

    def _unpack_buffer(self) -> list[Any]:
        values, position = list[Any](), 0
        with memoryview(self._buffer) as buffer:
            while len(buffer) >= position + _HEADER.size:
                is_marshal, length = _HEADER.unpack_from(buffer, position)
                end = position + _HEADER.size + length
                if end > len(buffer):
                    break
                data = buffer[position + _HEADER.size : end]
                try:
                    values.append(marshal.loads(data) if is_marshal else pickle.loads(data))
                except Exception as error:  # for example, a class that cannot be imported here
                    log.error("cannot read a message, so it is omitted: %s", reason(error))
                finally:
                    data.release()
                position = end
        del self._buffer[:position]
        return values


class SharedNumbers:
    """Two numbers in memory shared by the training's process and the worker, which are 0 at first. Reading one is a
    hundred times faster than reading a pipe.

    `cells[EVENTS]` counts the events that the worker has sent. `cells[HAS_SENT]` is 1 if the training thread has rung
    the bell since the worker last looked. Using `cells` directly is faster than a method.
    """

    EVENTS, HAS_SENT = 0, 16  # in two cache lines, because each number has its own writer

    def __init__(self, fd: int | None = None) -> None:
        """Open the memory with the file descriptor `fd` from another process, or create it."""
        if fd is None:
            with tempfile.TemporaryFile() as file:  # macOS has no memfd_create
                fd = os.memfd_create("oven-numbers") if hasattr(os, "memfd_create") else os.dup(file.fileno())
            os.ftruncate(fd, mmap.PAGESIZE)
        self.fd = fd
        self.cells = memoryview(mmap.mmap(fd, mmap.PAGESIZE)).cast("I")

    def count_event(self) -> None:
        """Increase the number of events by 1."""
        self.cells[self.EVENTS] = (self.cells[self.EVENTS] + 1) & 0xFFFFFFFF

    def close(self) -> None:
        _close(self.fd)
        self.fd = -1


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
