"""Removal of runs: which ones, what they hold on disk, and removing them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import datetime

from oven_core.errors import ConfigError, ProcessError, UnknownNameError, reason
from oven_runs.home.run_folder import Home, RunFolder

INFO, LOCK = "run.json", "lock"


def named(home: Home, runs: Sequence[str]) -> list[RunFolder]:
    """The runs' folders, also those whose run.json is damaged. Raises UnknownNameError."""
    inside = home.path / "runs"
    known = sorted(entry.name for entry in os.scandir(inside) if entry.is_dir()) if inside.is_dir() else []
    for run in runs:
        if run not in known:
            raise UnknownNameError("run", run, known)
    return [RunFolder(inside / run) for run in runs]


def old(home: Home, keep: int, older_than_days: float, now: datetime) -> list[RunFolder]:
    """The runs that are neither up, nor among the `keep` newest, nor written to within so many days."""
    since = now.timestamp() - older_than_days * 86400
    return [folder for folder in home.runs()[keep:] if not folder.locked() and _written(folder) <= since]


def _written(folder: RunFolder) -> float:
    """When the run's state or its log changed last, in seconds since the epoch. A resumed run is as young as that."""
    times = [path.stat().st_mtime for path in (folder.path / INFO, folder.export) if path.exists()]
    return max(times, default=0.0)


def refuse_live(folders: Sequence[RunFolder]) -> None:
    """Raises ConfigError where one is up, before anything is removed, and where one is a link."""
    for folder in folders:
        if folder.path.is_symlink():
            raise ConfigError(
                f"{folder.path} is a link to {folder.path.resolve()}: remove the link and its target by hand"
            )
        if folder.locked():
            raise ConfigError(
                f"run {folder.run!r} is up, and only a run that is down can be removed: end it with "
                f"`oven-controller down {folder.run}`"
            )


def occupied(folder: RunFolder) -> int:
    """Bytes that the folder takes on the disk. A file with another name outside of it counts, too."""
    total = 0
    for inside, folders, files in os.walk(folder.path):
        for name in (*folders, *files):
            try:
                total += os.lstat(os.path.join(inside, name)).st_blocks * 512
            except OSError:
                continue  # it was removed in this moment
    return total


def remove(folder: RunFolder) -> None:
    """Remove a run with all that is in its folder. Raises StoreInUseError where another process holds the run,
    ProcessError where something cannot be removed."""
    try:
        with folder.hold():
            # The lock is a file in use until it is released (NFS keeps such a file), and run.json goes last, so that a
            # removal that was interrupted is still listed.
            held = [entry for entry in os.scandir(folder.path) if entry.name != LOCK]
            for entry in sorted(held, key=lambda one: one.name == INFO):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        shutil.rmtree(folder.path)
    except OSError as error:
        raise ProcessError(
            f"run {folder.run!r} was not removed completely ({reason(error)}): remove {folder.path} by hand"
        ) from error


def in_words(size: int) -> str:
    """Bytes as a person reads them, in powers of 1000."""
    amount, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if amount < 1000 or unit == "TB":
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
