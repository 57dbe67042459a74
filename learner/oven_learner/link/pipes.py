"""A pipe between two processes of one owner, of which neither ever waits for the other."""

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
"""Asked of the system, which may give less: some 1,000 observations."""
_HEAD = struct.Struct("<?I")  # whether it is atoms, and the length of what follows


def packed(parcel: object) -> bytes:
    """Any object. Raises what pickle raises for what cannot travel."""
    data = pickle.dumps(parcel, protocol=pickle.HIGHEST_PROTOCOL)
    return _HEAD.pack(False, len(data)) + data


def packed_atoms(parcel: tuple[Any, ...] | dict[str, Any]) -> bytes:
    """A tuple, or a dict, of numbers, texts, tuples and dicts of those, at a tenth of the time. Raises ValueError for
    anything else."""
    data = marshal.dumps(parcel, 2)  # from version 3 on it looks for what it has met before, which takes as long again
    return _HEAD.pack(True, len(data)) + data


def unpacked(data: bytes) -> Any:
    """What `packed` or `packed_atoms` has packed."""
    atoms, length = _HEAD.unpack_from(data)
    body = data[_HEAD.size : _HEAD.size + length]
    return marshal.loads(body) if atoms else pickle.loads(body)


class Outlet:
    """The end that is written to."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # beyond what this user may have
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._fd = fd
        self._rest = b""
        self._later: deque[bytes] = deque()

    def put(self, parcel: bytes) -> bool:
        """Whether it is on its way, the rest of it with the next call perhaps. False: there is no room for it, or
        no one reads any more."""
        if not self.flush():
            return False
        self._rest = self._write(parcel)
        if len(self._rest) == len(parcel):
            self._rest = b""
            return False
        return True

    @property
    def idle(self) -> bool:
        """Whether all is on its way."""
        return not self._rest and not self._later

    def post(self, parcel: bytes) -> None:
        """Send it, with a later `flush` if there is no room now."""
        self._later.append(parcel)
        self.flush()

    def flush(self) -> bool:
        """Send what is left; whether all of it is on its way."""
        if self._rest:
            self._rest = self._write(self._rest)
        while self._later and not self._rest:
            parcel = self._later[0]
            self._rest = self._write(parcel)
            if len(self._rest) == len(parcel):
                self._rest = b""
                break
            self._later.popleft()
        return self.idle

    def close(self) -> None:
        _close(self._fd)
        self._fd = -1

    def _write(self, data: bytes) -> bytes:
        """What is left of it."""
        try:
            return data[os.write(self._fd, data) :]
        except OSError:  # full, or nobody reads any more
            return data


class Inlet:
    """The end that is read."""

    def __init__(self, fd: int) -> None:
        """Below 0: there is none, and nothing comes."""
        if fd >= 0:
            os.set_blocking(fd, False)
        self.fd = fd
        self.ended = False
        """The other end is closed, and all that it said was taken."""
        self._held = bytearray()

    def take(self) -> list[Any]:
        """All parcels that are there, in order."""
        try:
            while data := os.read(self.fd, PIPE_BYTES):
                self._held += data
                if len(data) < PIPE_BYTES:
                    break
            self.ended = not data
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
        return self._unpacked() if self._held else []

    def close(self) -> None:
        _close(self.fd)
        self.fd = -1

    def _unpacked(self) -> list[Any]:
        found, at = list[Any](), 0
        with memoryview(self._held) as held:
            while len(held) >= at + _HEAD.size:
                atoms, length = _HEAD.unpack_from(held, at)
                end = at + _HEAD.size + length
                if end > len(held):
                    break
                data = held[at + _HEAD.size : end]
                try:
                    found.append(marshal.loads(data) if atoms else pickle.loads(data))
                except Exception as error:  # e.g. of a class that cannot be imported here
                    log.error("a message could not be read and is left out: %s", reason(error))
                finally:
                    data.release()
                at = end
        del self._held[:at]
        return found


class Flag:
    """A number that two processes share: a look at it costs a hundredth of a look into a pipe."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd`: of another process's. Without one it is made."""
        if fd is None:
            with tempfile.TemporaryFile() as file:
                fd = os.memfd_create("oven-flag") if hasattr(os, "memfd_create") else os.dup(file.fileno())
            os.ftruncate(fd, mmap.PAGESIZE)
        self.fd = fd
        self._page = mmap.mmap(fd, mmap.PAGESIZE)

    @property
    def value(self) -> bytes:
        return self._page[:4]

    def raise_(self) -> None:
        """Another value than before. One process only does so."""
        self._page[:4] = struct.pack("<I", (struct.unpack("<I", self._page[:4])[0] + 1) & 0xFFFFFFFF)

    def close(self) -> None:
        """Its value can be looked at still."""
        _close(self.fd)
        self.fd = -1


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)
