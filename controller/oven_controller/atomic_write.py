"""Files written whole: a reader sees the old one or the new one, never a part."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


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


def write_atomic(path: Path, data: bytes | str, *, private: bool = False) -> None:
    """Replace the file's content, text as UTF-8. Raises OSError, and leaves the old content then."""
    with atomic_file(path, private=private) as out:
        out.write(data.encode() if isinstance(data, str) else data)
