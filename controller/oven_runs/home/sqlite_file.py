"""A SQLite file in a run's folder, as several processes of one machine may write to it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

BUSY_S: Final = 5.0
"""Seconds that a transaction waits for another process's; each takes under a millisecond."""


def open_database(path: Path | None, tables: str) -> sqlite3.Connection:
    """The file with `tables` in it, in autocommit; None: one in memory. Threads that share it take turns by a lock of
    theirs. Raises sqlite3.Error; DatabaseError itself where it is damaged."""
    file = sqlite3.connect(path or ":memory:", timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        # NORMAL: what a process wrote is there when it dies; a power cut may lose the last moments.
        file.executescript(f"PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL; {tables}")
        (result,) = file.execute("PRAGMA quick_check(1)").fetchone()
        if result != "ok":
            raise sqlite3.DatabaseError(result)
    except sqlite3.Error:
        file.close()
        raise
    return file
