"""Files that a person names on the command line: only regular ones are read, and only up to a limit."""

from __future__ import annotations

import stat
from pathlib import Path

from oven_controller.errors import ConfigError

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
