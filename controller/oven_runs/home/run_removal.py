"""Select runs to remove, measure their disk usage, and remove them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from oven_core.errors import ConfigError, ProcessError, UnknownNameError, reason
from oven_runs.home.run_folder import Home, RunFolder

INFO: Final = "run.json"
LOCK: Final = "lock"


def named_runs(home: Home, names: Sequence[str]) -> list[RunFolder]:
    """Return the folders of the runs with these names, even if run.json is damaged. Raises UnknownNameError."""
    parent = home.path / "runs"
    existing = sorted(entry.name for entry in os.scandir(parent) if entry.is_dir()) if parent.is_dir() else []
    for name in names:
        if name not in existing:
            raise UnknownNameError("run", name, existing)
    return [RunFolder(parent / name) for name in names]


def old_runs(home: Home, keep: int, older_than_days: float, now: datetime) -> list[RunFolder]:
    """Return the runs that are down, are not among the `keep` newest, and have not changed for `older_than_days`."""
    newest_allowed = now.timestamp() - older_than_days * 86400
    candidates = home.runs()[keep:]
    return [folder for folder in candidates if not folder.is_locked() and _last_written(folder) <= newest_allowed]


def _last_written(folder: RunFolder) -> float:
    """Return the time of the last change to run.json or the log, in seconds since 1970. Resuming a run changes them."""
    times = [path.stat().st_mtime for path in (folder.path / INFO, folder.export) if path.exists()]
    return max(times, default=0.0)


def check_removable(folders: Sequence[RunFolder]) -> None:
    """Raise ConfigError if any of the runs is up or its folder is a link."""
    for folder in folders:
        if folder.path.is_symlink():
            raise ConfigError(
                f"{folder.path} is a link to {folder.path.resolve()}: remove the link and its target by hand"
            )
        if folder.is_locked():
            raise ConfigError(
                f"run {folder.run!r} is up, and only a run that is down can be removed: stop it with "
                f"`oven-controller down {folder.run}`"
            )


def disk_usage(folder: RunFolder) -> int:
    """Return the disk usage of the folder in bytes, including files that also have hard links elsewhere."""
    total = 0
    for parent, folders, files in os.walk(folder.path):
        for name in (*folders, *files):
            try:
                total += os.lstat(os.path.join(parent, name)).st_blocks * 512
            except OSError:
                continue  # the file was removed in the meantime
    return total


def remove(folder: RunFolder) -> None:
    """Remove a run and its folder. Raises StoreInUseError, and ProcessError if a file cannot be removed."""
    try:
        with folder.hold():
            # The lock file is removed after its release, because NFS does not remove open files. run.json is removed
            # after all other files, so that a run whose removal was interrupted is still listed.
            entries = [entry for entry in os.scandir(folder.path) if entry.name != LOCK]
            for entry in sorted(entries, key=lambda entry: entry.name == INFO):
                if entry.is_dir(follow_symlinks=False):
                    shutil.rmtree(entry.path)
                else:
                    os.unlink(entry.path)
        shutil.rmtree(folder.path)
    except OSError as error:
        raise ProcessError(
            f"run {folder.run!r} was not removed completely ({reason(error)}): remove {folder.path} by hand"
        ) from error
