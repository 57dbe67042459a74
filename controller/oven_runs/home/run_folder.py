"""`$OVEN_HOME` (default `.oven/`): one folder per run with all that belongs to it, and a shared cache.

    runs/<run>/run.json      what it is and where it runs      runs/<run>/logs/<process>.log
    runs/<run>/config.json   its resolved settings             runs/<run>/checkpoints/
    runs/<run>/nats/         keys, configuration and store     runs/<run>/log.jsonl   the log, as it grows
    runs/<run>/spool.jsonl   what the log did not take of its learner
    .gitignore               with `*`, so that no key gets into a repository

A process id on disk proves nothing (it may be another process by now), so a run counts as running while somebody holds
the lock on its folder, which the kernel lets go of when its holder ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.errors import ConfigError, NameInUseError, StoreInUseError, UnknownNameError, reason
from oven_core.files import write_atomic
from oven_core.protocol import names
from oven_core.protocol.permissions import Role
from oven_core.security.signing import LEARNER, load_keys
from oven_runs.home import spool
from oven_runs.server.embedded import KEYS, ServerFolder

IMPORTED = "imported"
"""The recipe of a run that was made of another program's logs."""
_READER = b"reader"
"""What the lock file holds while its holder only reads the store."""
Status = Literal["running", "completed", "stopped", "failed", "interrupted"]


class RunInfo(BaseModel):
    """run.json. `status` in a listing is derived: see RunFolder.status."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    run: str
    created: str = Field(description="RFC 3339, UTC")
    recipe: str
    start: str = ""
    drill: str = Field(default="", description="what was staged, if this run is a drill")
    pid: int = Field(default=0, description="of `up`")
    url: str = ""
    port: int | None = None
    embedded: bool = True
    creds: str = Field(default="", description="with a server that is not embedded: its .nk file or folder")
    tls_ca: str = Field(
        default="", description="the authority that its server's certificate is of; empty: the system's"
    )
    children: dict[str, int] = Field(default_factory=dict, description="process → pid")
    ended: Status | None = Field(default=None, description="how `up` ended; none: it runs, or was killed")
    learner_end: str = Field(default="", description="how the learner's process ended; empty while it runs")
    mirrored: bool = Field(
        default=False, description="log.jsonl grew beside the store, and was not finished by what that holds"
    )


class RunFolder:
    """One run's folder. Nothing is created by looking at it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = path.name
        self.config = path / "config.json"
        self.logs = path / "logs"
        self.checkpoints = path / "checkpoints"
        self.export = path / "log.jsonl"
        self.server = ServerFolder(path / "nats", path.name)
        self._info = path / "run.json"
        self._lock = path / "lock"

    def __repr__(self) -> str:
        return f"RunFolder({str(self.path)!r})"

    def info(self) -> RunInfo:
        try:
            return RunInfo.model_validate_json(self._info.read_bytes())
        except (OSError, ValidationError) as error:
            raise ConfigError(
                f"{self._info} cannot be read ({reason(error)}); remove {self.path} if it is of no use"
            ) from error

    def last_words(self, process: str) -> str:
        """The last line of a process's log; empty if it said nothing."""
        try:
            lines = (self.logs / f"{process}.log").read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def readable(self) -> bool:
        """One damaged run.json must not hide the other runs."""
        try:
            self.info()
        except ConfigError:
            return False
        return True

    def write_info(self, info: RunInfo) -> None:
        write_atomic(self._info, info.model_dump_json(indent=1) + "\n")

    def earlier_settings(self) -> dict[str, Any]:
        """What the run was configured with last; nothing if it never came so far."""
        try:
            settings = json.loads(self.config.read_text())
        except (OSError, ValueError, RecursionError):
            return {}
        return settings if isinstance(settings, dict) else {}

    def change_settings(self, change: Callable[[dict[str, Any]], object]) -> None:
        """Change what a restarted process, or a resumed run, is configured with; one command at a time. Raises
        ConfigError where the run has no settings."""
        with (self.path / "config.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            settings = self.earlier_settings()
            if not settings:
                raise ConfigError(f"{self.config} holds no settings; was the run started by `up`?")
            change(settings)
            write_atomic(self.config, (json.dumps(settings, indent=1) + "\n").encode())

    def status(self) -> Status:
        if self.locked():
            return "running"
        return self.info().ended or "interrupted"

    def exported(self) -> bool:
        """Whether log.jsonl is there and is the whole log."""
        if not self.export.exists() or (self.path / spool.NAME).exists():
            return False
        return not (self._info.exists() and self.info().mirrored)

    def missing(self) -> str:
        """What the log lacks of its learner, as far as that is known: a sentence; empty where nothing is. Raises
        ConfigError where a spool is another run's."""
        left, lost = spool.look(self.path, self.run), spool.lost_for_good(self.path, self.run)
        said = [f"the log lacks {left.words()}; see {self.path / spool.NAME}"] if not left.nothing else []
        if lost:
            said.append(f"the log lacks {lost} messages of the learner for good: the spool that held them was cut")
        return "; ".join(said)

    def stored(self) -> bool:
        """Whether there is a store of an embedded server's to read the log from."""
        return (self.server.folder / "store").exists()

    def locked(self) -> bool:
        """Whether a stack holds this run now. Reading its store does not make it one that runs."""
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
        """The lock, for as long as this process uses the run's store. Raises StoreInUseError when another has it."""
        descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for attempt in range(5):
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if attempt == 4:
                        raise StoreInUseError(self._in_use(os.pread(descriptor, 64, 0) == _READER)) from None
                    time.sleep(0.02)  # somebody may only have looked whether it is locked
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, _READER if reading else b"", 0)
            yield
        finally:
            os.close(descriptor)

    def _in_use(self, reader: bool) -> str:
        if reader:
            return (
                f"the store of run {self.run!r} is being read by another command, which leaves {self.export.name} "
                "behind; try again when it has ended"
            )
        return (
            f"run {self.run!r} is in use by another process; "
            f"`oven-controller status {self.run}` shows it, `oven-controller down {self.run}` ends it"
        )

    def add_user(
        self, role: Role, name: str, agents: Sequence[str] | None = None, *, completions: bool | None = None
    ) -> Path:
        """A key for `name`, under a lock: two commands may add one at a time."""
        with self._users_locked():
            return self.server.add_user(role, name, agents, completions=completions)

    def remove_user(self, name: str) -> None:
        with self._users_locked():
            self.server.remove_user(name)

    @contextlib.contextmanager
    def _users_locked(self) -> Iterator[None]:
        self.server.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.server.folder / "users.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def credentials(self, role: Role, name: str = "") -> Path | None:
        """The key of a role: the embedded server's, or what --creds gave (a file for all, or a folder)."""
        name = name or role
        info = self.info()
        if info.embedded:
            return self.add_user(role, name)
        if not info.creds:
            return None
        given = Path(info.creds)
        return given / f"{name}.nk" if given.is_dir() else given

    def keys(self) -> Path | None:
        """Where the public keys of those who sign are; None in a run that is not signed."""
        info = self.info()
        if not info.embedded and not info.creds:
            return None
        path = (self.server.creds if info.embedded else Path(info.creds)) / KEYS
        return path if path.is_file() else None

    def pin(self) -> str | None:
        """The learner's public key, by which all the others are known. Raises ConfigError when keys.json is damaged."""
        path = self.keys()
        return load_keys(path).get(LEARNER) if path else None


class Home:
    def __init__(self, path: Path | None = None) -> None:
        self.path = (path or Path(os.environ.get("OVEN_HOME") or ".oven")).absolute()
        self.cache = self.path / "cache"

    def runs(self) -> list[RunFolder]:
        """Newest first. A folder without a run.json that can be read is not a run."""
        try:
            entries = [RunFolder(entry) for entry in (self.path / "runs").iterdir() if (entry / "run.json").is_file()]
            folders = [folder for folder in entries if folder.readable()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._unusable(error) from error
        return sorted(folders, key=lambda folder: (folder.info().created, folder.run), reverse=True)

    def find(self, run: str | None, *, running: bool = False) -> RunFolder:
        """The run called `run`; without a name the one that runs, else (unless `running`) the newest."""
        runs = self.runs()
        if run is not None:
            for folder in runs:
                if folder.run == run:
                    if running and not folder.locked():
                        raise ConfigError(
                            f"run {run!r} is not running ({folder.status()}); "
                            f"`oven-controller up --resume --run {run}` continues it"
                        )
                    return folder
            raise UnknownNameError("run", run, [folder.run for folder in runs])
        live = [folder for folder in runs if folder.locked()]
        if len(live) == 1:
            return live[0]
        if live and running:
            raise ConfigError("several runs are running: " + ", ".join(f.run for f in live) + "; name the one you mean")
        if running:
            raise ConfigError("no run is running; `oven-controller up` starts one, `oven-controller runs` lists all")
        if not runs:
            raise ConfigError(f"there are no runs in {self.path} yet; `oven-controller up` starts one")
        return live[0] if live else runs[0]

    def check_free(self, run: str | None) -> None:
        """Raises what `create` would raise of the name and of the home, and makes nothing."""
        if run is not None and (self.path / "runs" / names.checked("run", run)).exists():
            raise self._taken(run)
        folder = next(one for one in (self.path / "runs", *(self.path / "runs").parents) if one.exists())
        if not folder.is_dir():
            raise self._unusable(NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)))
        if not os.access(folder, os.W_OK | os.X_OK):
            raise self._unusable(PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder)))

    def create(self, run: str | None, recipe: str, now: datetime | None = None) -> RunFolder:
        """A new run's folder. Raises NameInUseError, or ConfigError when the home cannot be written to."""
        now = now or datetime.now()
        if run is not None:
            names.checked("run", run)
            candidates = [run]
        else:
            base = f"{recipe}-{now:%m%d-%H%M}"
            candidates = [base, *(f"{base}-{n}" for n in range(2, 1000))]
        for name in candidates:
            folder = RunFolder(self.path / "runs" / name)
            try:
                self._make()
                self.cache.mkdir(exist_ok=True)
                folder.path.mkdir()
                for inner in (folder.logs, folder.checkpoints):
                    inner.mkdir()
                folder.write_info(RunInfo(run=name, created=datetime.now(UTC).isoformat(), recipe=recipe))
                return folder
            except FileExistsError as error:
                if error.filename != str(folder.path) or not folder.path.is_dir():
                    raise self._unusable(error) from error
            except OSError as error:
                raise self._unusable(error) from error
        raise self._taken(candidates[-1])

    def _make(self) -> None:
        """Make the folders in which runs are. A home that is made here gets a .gitignore, because it holds keys; one
        that existed already may be any folder, and is left as it is."""
        if not self.path.exists():
            self.path.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError), (self.path / ".gitignore").open("x") as out:
                out.write("*\n")
        (self.path / "runs").mkdir(exist_ok=True)

    def _taken(self, run: str) -> NameInUseError:
        return NameInUseError(
            f"there is a run named {run!r} in {self.path}; choose another name with --run, or continue it by --resume"
        )

    def _unusable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"the folder {self.path} cannot be used ({error.strerror}: {error.filename}); "
            "set OVEN_HOME to a folder that you may write to"
        )
