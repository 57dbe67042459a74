"""Caches what status and decisions know about a long log, so that the next command decodes only the rest of it.

The cache has the summary and the explanations of the log's first events, as a BriefLog yields them. It is used only if
its MAC, with a key of this home, is right, and if that part of log.jsonl still has the same SHA-256. Otherwise the
whole log is read, so a change of either file is noticed as if there were no cache. See ADR 31.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import inspect
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic_core import to_json

from oven_core.errors import OvenError, reason
from oven_core.files import write_atomic
from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunStarted
from oven_core.protocol.operator_messages import OperatorKey
from oven_core.security.signing import Keyring
from oven_core.terminal_text import warn
from oven_runs.access import brief_log, log_sources
from oven_runs.access.brief_log import BriefLog, Progress
from oven_runs.access.run_access import LogView
from oven_runs.home.run_folder import RunFolder
from oven_runs.log import active_alerts, explanation, run_summary
from oven_runs.log.explanation import Explanations
from oven_runs.log.run_summary import RunSummary

FILE: Final = "log.cache"
"""Name of the cache in the run's folder."""
KEY_FILE: Final = "log-cache.key"
"""Name of the key in the home's folder `cache`."""
MIN_BYTES: Final = 4 << 20
"""Minimum number of unread bytes for a new cache. Reading them takes about 0.2 s."""
MIN_GROWTH: Final = 1 / 16
"""Minimum growth of the log between two caches. Writing one takes longer for a longer log."""
_KEY_BYTES: Final = 32
_CHUNK_BYTES: Final = 1 << 20


@dataclass
class _Header:
    run: str
    pin: str | None
    code: str = ""
    """Hash of the code that made this state."""
    digest: str = ""
    """SHA-256 of the part of log.jsonl that was read."""
    progress: Progress = field(default_factory=Progress)
    key_lines: list[str] = field(default_factory=list)
    """The log's lines that may have changed the keys for verifying later events."""


class LogCache:
    """The state of reading a log up to some event: the saved state, or that before the first event."""

    def __init__(self, folder: RunFolder, growing: bool) -> None:
        """`growing` is passed to BriefLog. Raises ConfigError if the run's keys are damaged."""
        self._folder = folder
        self._header = _Header(folder.run, folder.pin())
        self._digest = hashlib.sha256()
        self._views: dict[type[LogView], LogView | bytes] = {}
        self.fault = ""
        """Why the saved cache is not used, empty if it is, or if there is none."""
        try:
            self._load()
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            self.fault = f"{FILE} cannot be read: {reason(error)}" if isinstance(error, OSError) else str(error)
        self.log = BriefLog(folder, growing=growing, progress=self._header.progress)
        """The log, from the first event that is not in this cache."""
        self.keyring = Keyring(self._header.pin)
        """Verifies the events of `log`."""
        for line in self._header.key_lines:
            self.keyring.verify(Event.from_line(line))

    @property
    def is_behind(self) -> bool:
        """Whether so much of the log is unread that saving a new cache is worth its time."""
        return self.log.unread_bytes > max(MIN_BYTES, self._header.progress.offset * MIN_GROWTH)

    def restore(self, view: LogView) -> None:
        """Give a new view its state after the events of this cache."""
        if saved := self._views.get(type(view)):
            restored = TypeAdapter(type(view)).validate_json(saved) if isinstance(saved, bytes) else saved
            vars(view).update(vars(restored))

    def advance(self, view: LogView, on_event: Callable[[Event], object] = lambda _: None) -> None:
        """Read the log almost to its end, and save the cache if the home is writable. Feed the events to `view`, which
        was restored. `on_event` is called with each event, and may raise to stop. Raises the errors of LogFile."""
        second_view = Explanations() if isinstance(view, RunSummary) else RunSummary()
        self.restore(second_view)
        for raw in self.log.skim(self._digest.update):
            event = self.keyring.verify(raw)
            view.feed(event)
            second_view.feed(event)
            on_event(event)
            if isinstance(event.body, RunStarted | OperatorKey):
                self._header.key_lines.append(event.line())
        self._views = {type(view): view, type(second_view): second_view}
        self._header.progress, self._header.digest = self.log.progress(), self._digest.hexdigest()
        if self.log.is_at_tail:
            with contextlib.suppress(OSError, ValueError):
                self._save()

    def _load(self) -> None:
        """Read the saved cache. Raises OSError if it is unreadable, and ValueError if it must not be used."""
        path = self._folder.path / FILE
        if not path.is_file() and path.exists():  # a device has no end
            raise ValueError(f"{FILE} is not a regular file")
        mac, _, content = path.read_bytes().partition(b"\n")
        key = _read_key(self._folder)
        if not hmac.compare_digest(mac, _mac(key, content)):
            raise ValueError(f"{FILE} was not written in this home, or was changed")
        header_json, summary, explanations = content.split(b"\n")
        header = TypeAdapter(_Header).validate_json(header_json)
        if (header.run, header.pin, header.code) != (self._header.run, self._header.pin, _code_hash()):
            raise ValueError(f"{FILE} is from another version or has other keys")
        digest = _hash_start(self._folder.export, header.progress.offset)
        if digest.hexdigest() != header.digest:
            raise ValueError(f"{FILE} does not match {self._folder.export.name}")
        self._header, self._digest = header, digest
        self._views = {RunSummary: summary, Explanations: explanations}

    def _save(self) -> None:
        self._header.code = _code_hash()
        key = _read_key(self._folder, create=True)
        parts = self._header, self._views[RunSummary], self._views[Explanations]
        content = b"\n".join(to_json(part, inf_nan_mode="strings") for part in parts)
        write_atomic(self._folder.path / FILE, _mac(key, content) + b"\n" + content, private=True)


def read_with_cache(
    folder: RunFolder, view: LogView, *, growing: bool, on_event: Callable[[Event], object] = lambda _: None
) -> tuple[Keyring, int]:
    """Feed the verified events of log.jsonl to a new view. Return the keyring and the last event's sequence number.
    Raises the errors of LogFile."""
    log_cache = LogCache(folder, growing)
    log_cache.restore(view)
    if log_cache.is_behind:
        if log_cache.fault:
            warn(f"reading the whole log of run {folder.run!r}, because {log_cache.fault}")
        log_cache.advance(view, on_event)
    for raw in log_cache.log:
        event = log_cache.keyring.verify(raw)
        view.feed(event)
        on_event(event)
    return log_cache.keyring, log_cache.log.seq


async def save_regularly(folder: RunFolder, interval_s: float) -> None:
    """Update the cache of a growing log until cancelled. Each update is a new process, because it may take seconds."""
    checked_bytes = 0
    while True:
        await asyncio.sleep(interval_s)
        with contextlib.suppress(OSError):
            size = folder.export.stat().st_size
            if size - checked_bytes > max(MIN_BYTES, checked_bytes * MIN_GROWTH):
                await refresh_in_process(folder)
                checked_bytes = size


async def refresh_in_process(folder: RunFolder) -> None:
    """Call `refresh` in a new process, which ends when this task is cancelled or this process ends."""
    command = (sys.executable, "-P", "-m", __name__, str(folder.path))
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def refresh(folder: RunFolder, *, growing: bool) -> None:
    """Save the cache if the log has grown enough. Ignore errors, which the commands that read the log report."""
    with contextlib.suppress(OSError, OvenError):
        log_cache = LogCache(folder, growing)
        if log_cache.is_behind:
            summary = RunSummary()
            log_cache.restore(summary)
            log_cache.advance(summary)


def _code_hash() -> str:
    """Return the hash of the code that determines a cache's content."""
    from oven_core.mesh.code_hash import mesh_code_hash  # not needed for a short log

    digest = hashlib.sha256(mesh_code_hash().encode())
    for module in (brief_log, log_sources, run_summary, explanation, active_alerts):
        digest.update(Path(inspect.getfile(module)).read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()


def _read_key(folder: RunFolder, *, create: bool = False) -> bytes:
    """Return the home's key. Raises OSError if it cannot be read or created, and ValueError if it is not a key."""
    runs = folder.path.parent
    path = runs.parent / "cache" / KEY_FILE
    if runs.name != "runs":
        raise ValueError(f"{folder.path} is not in a home")
    if create and not path.exists():
        path.parent.mkdir(exist_ok=True)
        write_atomic(path, os.urandom(_KEY_BYTES), private=True)
    key = path.read_bytes()
    if len(key) != _KEY_BYTES:
        raise ValueError(f"{path} does not have {_KEY_BYTES} bytes")
    return key


def _mac(key: bytes, content: bytes) -> bytes:
    return hmac.digest(key, content, "sha256").hex().encode()


def _hash_start(path: Path, size: int) -> Any:
    """Return the SHA-256 object of a file's first `size` bytes, or of the whole file if it is shorter."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(_CHUNK_BYTES))
    with path.open("rb", buffering=0) as file:
        while size and (count := file.readinto(buffer[: min(size, _CHUNK_BYTES)])):
            digest.update(buffer[:count])
            size -= count
    return digest


if __name__ == "__main__":
    from oven_runs.process.child_process import end_with_input

    end_with_input()
    os.nice(10)  # the training is more important
    refresh(RunFolder(Path(sys.argv[1])), growing=True)
