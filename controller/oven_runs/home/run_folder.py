"""Access to the run folders in `$OVEN_HOME` (default `.oven/`): one folder per run, and a shared cache.

    runs/<run>/run.json      recipe, address and status        runs/<run>/logs/<process>.log
    runs/<run>/config.json   resolved settings                 runs/<run>/checkpoints/
    runs/<run>/nats/         keys, configuration and store     runs/<run>/log.jsonl   the log as it grows
    runs/<run>/spool.jsonl   learner messages that are not in the log yet
    .gitignore               with `*`, so that no key gets into a repository

A run counts as running while a process holds the lock on its folder. The kernel releases the lock when that process
ends. A process id on disk would not be enough, because another process may have the same id later.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oven_core.errors import ConfigError, NameInUseError, StoreInUseError, UnknownNameError, reason
from oven_core.files import write_atomic
from oven_core.protocol import names
from oven_runs.home.run_info import RunInfo, Status

if TYPE_CHECKING:  # the methods that need these modules import them, because a list of runs needs none of them
    from oven_core.protocol.permissions import Role
    from oven_runs.server.embedded_server import ServerFolder

IMPORTED = "imported"
"""The recipe's name for a run that was imported from another program's logs."""
PREPARING = "preparing: "
"""Prefix of the line in the learner's log that describes its work before the run, such as a warm-up."""
_READER = b"reader"
"""Content of the lock file while its holder only reads the store."""
OnUnreadableRun = Callable[[str, PermissionError], object]
"""Called with the name of a run that only another user may read, and the error."""


def ignore_unreadable(_run: str, _error: PermissionError) -> None:
    """An OnUnreadableRun that does nothing."""


class RunFolder:
    """One run's folder. Creating this object or reading from it creates no files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path.name
        self.config = path / "config.json"
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.export = path / "log.jsonl"  # the copy of the log that is exported from the store
        self._info = path / "run.json"
        self._lock = path / "lock"

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    @functools.cached_property
    def server(self) -> ServerFolder:
        from oven_runs.server.embedded_server import ServerFolder

        return ServerFolder(self.path / "nats", self.run)

    def info(self) -> RunInfo:
        """Read run.json. Raises ConfigError."""
        try:
            return RunInfo.from_json(self._info.read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self._info} cannot be read ({reason(error)}); remove {self.path} if you do not need it"
            ) from error

    def last_log_line(self, process: str) -> str:
        """Return the last line of a process's log, or an empty string if there is none."""
        try:
            lines = (self.logs / f"{process}.log").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def preparation(self) -> str:
        """Describe the learner's work before its run starts, or return an empty string."""
        return self.last_log_line("learner").partition(PREPARING)[2]

    def resume_command(self, script: str = "COMMAND") -> str:
        """Return the command that continues the run. That of a user's script needs the script's own command again."""
        from oven_runs.settings.completions import ATTACHED

        if self.info().recipe == ATTACHED:
            return f"oven-controller run --resume --run {self.run} -- {script}"
        return f"oven-controller up --resume --run {self.run}"

    def write_info(self, info: RunInfo) -> None:
        """Replace run.json. Raises OSError."""
        write_atomic(self._info, info.to_json())

    def earlier_settings(self) -> dict[str, Any]:
        """Return the settings with which the run was last started, or an empty dict if there are none."""
        try:
            settings = json.loads(self.config.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return settings if isinstance(settings, dict) else {}

    def change_settings(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change the settings for restarted processes and a resumed run, under a lock. Raises ConfigError."""
        with (self.path / "config.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            settings = self.earlier_settings()
            if not settings:
                raise ConfigError(f"{self.config} has no settings; was the run started by `up`?")
            change(settings)
            write_atomic(self.config, (json.dumps(settings, indent=1) + "\n").encode())

    def status(self) -> Status:
        """Return "running" if the run is up, or how it ended. Raises ConfigError."""
        if self.is_locked():
            return "running"
        return self.info().ended or "interrupted"

    def has_complete_log(self) -> bool:
        """Whether log.jsonl exists and is the whole log."""
        from oven_runs.home import learner_spool

        if not self.export.exists() or (self.path / learner_spool.NAME).exists():
            return False
        return not (self._info.exists() and self.info().mirrored)

    def missing_messages(self) -> str:
        """Return a sentence about messages of the learner that are known to be missing from the log, or an empty string
        if there are none. Raises ConfigError if the spool belongs to another run."""
        from oven_runs.home import learner_spool

        spooled = learner_spool.read_spool(self.path, self.run)
        lost = learner_spool.count_permanently_lost(self.path, self.run)
        sentences = []
        if not spooled.is_empty:
            sentences.append(f"the log lacks {spooled.summary()}; see {self.path / learner_spool.NAME}")
        if lost:
            sentences.append(f"{lost} messages of the learner are permanently lost: the spool was truncated")
        return "; ".join(sentences)

    def has_store(self) -> bool:
        """Whether the store of an embedded server exists."""
        return (self.server.folder / "store").exists()

    def is_locked(self) -> bool:
        """Whether a stack has this run locked. A command that only reads the store does not count."""
        try:
            descriptor = os.open(self._lock, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return os.read(descriptor, 64) != _READER
        finally:
            os.close(descriptor)
        return False

    @contextlib.contextmanager
    def hold(self, *, reading: bool = False) -> Iterator[None]:
        """Lock the store for this process, which only reads it if `reading`. Raises StoreInUseError if it is locked."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for attempt in range(5):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if attempt == 4:
                        raise StoreInUseError(self._in_use_error(os.pread(descriptor, 64, 0) == _READER)) from None
                    time.sleep(0.02)  # another process may just be checking the lock
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _READER if reading else b"", 0)
            yield
        finally:
            os.close(descriptor)

    def _in_use_error(self, by_reader: bool) -> str:
        if by_reader:
            return (
                f"the store of run {self.run!r} is being read by another command, which writes {self.export.name}; "
                "try again when it has ended"
            )
        return (
            f"run {self.run!r} is in use by another process; "
            f"`oven-controller status {self.run}` shows it, `oven-controller down {self.run}` stops it"
        )

    def add_user(
        self, role: Role, name: str, agents: Sequence[str] | None = None, *, completions: bool | None = None
    ) -> Path:
        """Create a key for `name`, under a lock. Return the key file."""
        with self._lock_users():
            return self.server.add_user(role, name, agents, completions=completions)

    def remove_user(self, name: str) -> None:
        """Revoke the key of `name`."""
        with self._lock_users():
            self.server.remove_user(name)

    @contextlib.contextmanager
    def _lock_users(self) -> Iterator[None]:
        self.server.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.server.folder / "users.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def credentials(self, role: Role, name: str = "") -> Path | None:
        """Return the key file of a role, from the embedded server or from --creds (one file, or a folder)."""
        name = name or role
        info = self.info()
        if info.embedded:
            return self.add_user(role, name)
        if not info.creds:
            return None
        creds = Path(info.creds)
        return creds / f"{name}.nk" if creds.is_dir() else creds

    def keys_file(self) -> Path | None:
        """Return the file with the signers' public keys, or None if the run is not signed."""
        from oven_core.security.signing import KEYS

        info = self.info()
        if not info.embedded and not info.creds:
            return None
        path = (self.path / "nats" / "creds" if info.embedded else Path(info.creds)) / KEYS
        return path if path.is_file() else None

    def pin(self) -> str | None:
        """Return the learner's public key, which vouches for all others. Raises ConfigError if keys.json is damaged."""
        from oven_core.security.signing import LEARNER, load_keys

        path = self.keys_file()
        return load_keys(path).get(LEARNER) if path else None


class Home:
    """The folder with all runs and the cache."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = (path or Path(os.environ.get("OVEN_HOME") or ".oven")).absolute()
        self.cache = self.path / "cache"

    def runs(self, on_unreadable: OnUnreadableRun = ignore_unreadable) -> list[RunFolder]:
        """Return all runs, newest first. Folders without a readable run.json are skipped. `on_unreadable` is called
        with each run that only another user may read."""
        created: dict[RunFolder, str] = {}
        try:
            for entry in (self.path / "runs").iterdir():
                folder = RunFolder(entry)
                try:
                    if (entry / "run.json").is_file():
                        folder.is_locked()  # raises PermissionError if the lock is another user's
                        created[folder] = folder.info().created
                except PermissionError as error:
                    on_unreadable(folder.run, error)
                except ConfigError:
                    pass
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable_error(error) from error
        return sorted(created, key=lambda folder: (created[folder], folder.run), reverse=True)

    def find(self, run: str | None, *, running: bool = False) -> RunFolder:
        """Return the run with this name. Without a name, return the only run that is up, or if none is up, the newest
        run. With `running`, only a run that is up is returned. Raises UnknownNameError, ConfigError if no run or
        several runs could be meant, and PermissionError if only another user may read the run."""
        unreadable: dict[str, PermissionError] = {}
        runs = self.runs(unreadable.__setitem__)
        if run is not None:
            if run in unreadable:
                raise unreadable[run]
            for folder in runs:
                if folder.run == run:
                    if running and not folder.is_locked():
                        raise ConfigError(
                            f"run {run!r} is not running ({folder.status()}); `{folder.resume_command()}` continues it"
                        )
                    return folder
            raise UnknownNameError("run", run, [folder.run for folder in runs])
        live = [folder for folder in runs if folder.is_locked()]
        if len(live) == 1:
            return live[0]
        if live:
            live_names = ", ".join(folder.run for folder in live)
            raise ConfigError(f"several runs are running: {live_names}; name one of them, e.g. --run {live[0].run}")
        if running:
            raise ConfigError("no run is running; `oven-controller up` starts one, `oven-controller runs` lists all")
        if not runs and unreadable:
            raise next(iter(unreadable.values()))
        if not runs:
            raise ConfigError(f"there are no runs in {self.path} yet; `oven-controller up` starts one")
        return runs[0]

    def check_free(self, run: str | None) -> None:
        """Raise the errors that `create` would raise for the name and the home, without creating anything."""
        if run is not None and (self.path / "runs" / names.validate("run", run)).exists():
            raise self._name_in_use_error(run)
        folder = next(path for path in (self.path / "runs", *(self.path / "runs").parents) if path.exists())
        if not folder.is_dir():
            raise self._unusable_error(NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise self._unusable_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder)))

    def create(self, run: str | None, recipe: str, now: datetime | None = None) -> RunFolder:
        """Create a new run's folder. Raises NameInUseError, or ConfigError if the home is not writable."""
        now = now or datetime.now()
        if run is not None:
            names.validate("run", run)
            candidates = [run]
        else:
            base = f"{recipe}-{now:%m%d-%H%M}"
            candidates = [base, *(f"{base}-{n}" for n in range(2, 1000))]
        for name in candidates:
            folder = RunFolder(self.path / "runs" / name)
            try:
                self._create_home()
                self.cache.mkdir(exist_ok=True)
                folder.path.mkdir()
                for inner in (folder.logs, folder.checkpoints):
                    inner.mkdir()
                folder.write_info(RunInfo(run=name, created=datetime.now(UTC).isoformat(), recipe=recipe))
                return folder
            except FileExistsError as error:
                if error.filename != str(folder.path) or not folder.path.is_dir():
                    raise self._unusable_error(error) from error
            except OSError as error:
                raise self._unusable_error(error) from error
        raise self._name_in_use_error(candidates[-1])

    def _create_home(self) -> None:
        """Create the home and its folder for runs, unless they exist. A new home gets a .gitignore to protect keys."""
        if not self.path.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError), (self.path / ".gitignore").open("x") as out:
                out.write("*\n")
        (self.path / "runs").mkdir(exist_ok=True)

    def _name_in_use_error(self, run: str) -> NameInUseError:
        return NameInUseError(
            f"there is a run named {run!r} in {self.path}; choose another name with --run, or continue it with --resume"
        )

    def _unusable_error(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"the folder {self.path} cannot be used ({error.strerror}: {error.filename}); "
            "set OVEN_HOME to a folder that you can write to"
        )
