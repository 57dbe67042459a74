"""Write files atomically, so that no reader sees a partial file, and read users' files (also CSV) with size limits."""

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
    """Open a file that replaces `path` after the block, unless the block raises. A `private` file has mode 0600."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")  # another process may also be replacing `path`
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if private else 0o666)
    try:
        with os.fdopen(descriptor, "wb") as out:
            if private:
                os.fchmod(descriptor, 0o600)  # the file may exist from an earlier attempt
            yield out
            out.flush()
            os.fsync(descriptor)
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)  # on a full disk, the partial file would use up the remaining space
        raise


def write_atomic(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Replace a file's content by bytes, or text in UTF-8. If this raises OSError, the file keeps its old content."""
    with atomic_file(path, private=private) as out:
        out.write(data.encode() if isinstance(data, str) else data)


MAX_FILE_BYTES = 1 << 20
"""Default maximum size of a file that `read_file` reads, in bytes. A settings file typically has a few thousand."""
_SPECIAL_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def read_file(path: Path, description: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes of a regular file. `description` names it in error messages. Raises ConfigError.

    Other kinds of files are refused, because a pipe may never send anything, and a device may never end."""
    try:
        mode = path.stat().st_mode
        kind = next((name for is_kind, name in _SPECIAL_KINDS if is_kind(mode)), "")
        if kind:
            raise ConfigError(f"cannot read {description} {path}: it is {kind}, but must be a regular file")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise ConfigError(f"cannot read {description} {path}: {error.strerror}") from error
    except ValueError as error:  # a null byte in the name
        raise ConfigError(f"cannot read {description} {str(path)!r}: {error}") from error
    if len(data) > limit:
        raise ConfigError(f"cannot read {description} {path}: it is larger than the limit of {limit:,} bytes")
    return data


@contextlib.contextmanager
def csv_field_limit(characters: int) -> Iterator[None]:
    """Limit the field length of the `csv` module during the block. The limit holds for all threads of the process."""
    previous_limit = csv.field_size_limit(characters)
    try:
        yield
    finally:
        csv.field_size_limit(previous_limit)
