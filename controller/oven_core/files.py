"""Files written whole, so that a reader never sees a part; and those that a person names, read within
limits: only regular ones, and only so many bytes."""

from __future__ import annotations

import contextlib
import csv
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from oven_core.errors import ConfigError


@contextlib.contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A file to fill, which takes the place of `path` at the end of the block; if the block raises, nothing of it is
    left. `private`: only its owner may read it (mode 0600)."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # another process may write the same file
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as out:
            if private:
                os.fchmod(descriptor, 0o600)  # of one that was left behind, too
            yield out
            out.flush()
            os.fsync(descriptor)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # on a full disk it would take what room there is
        raise


@contextlib.contextmanager
def longest_csv_field(characters: int) -> Iterator[None]:
    """Within the block the module `csv` refuses longer fields. Its limit is the whole process's, so it is put back."""
    before = csv.field_size_limit(characters)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def write_atomic(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Replace the file's content, text as UTF-8. Raises OSError, and leaves the old content then."""
    with atomic_file(path, private=private) as out:
        out.write(data.encode() if isinstance(data, str) else data)


FILE_BYTES = 1 << 20
"""A settings file has a few thousand."""
_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def read_file(path: Path, called: str, limit: int = FILE_BYTES) -> bytes:
    """The bytes of a regular file: a pipe may never say anything, and a device never end. `called`: what it is, for the
    message. Raises ConfigError."""
    try:
        if (kind := next((name for is_, name in _KINDS if is_(path.stat().st_mode)), "")) == "":
            with path.open("rb") as file:
                data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {called} {path}: {error.strerror}") from error
    except ValueError as error:  # a null byte in the name
        raise ConfigError(f"cannot read {called} {str(path)!r}: {error}") from error
    if kind:
        raise ConfigError(f"cannot read {called} {path}: it is {kind}; give a regular file")
    if len(data) > limit:
        raise ConfigError(f"cannot read {called} {path}: it has more than {limit:,} bytes, the most that are read")
    return data
