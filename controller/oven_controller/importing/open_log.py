"""Open the log of a run by its name, folder or log.jsonl, or import another program's training logs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from oven_controller.importing.declared_knobs import Knob
from oven_controller.importing.import_run import ImportedSource, read_source
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol import names
from oven_core.protocol.events import Event
from oven_core.security.signing import Keyring
from oven_runs.access import log_sources
from oven_runs.access.local_run import LocalRun
from oven_runs.home.run_folder import Home, RunFolder


class OpenedLog(NamedTuple):
    """A log that can be read any number of times while it is open."""

    run: str
    events: Callable[[], Iterable[Event]]
    """Returns the verified events."""
    folder: Path | None = None
    """The run's folder, if it has one."""
    imported: ImportedSource | None = None
    """The imported source, if the log comes from another program."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Metric → the column of another program's log from which it comes."""
        return self.imported.summary(())["columns"] if self.imported else {}


@contextlib.contextmanager
def open_log(
    source: str, renames: Mapping[str, str] = MappingProxyType({}), knobs: Sequence[Knob] = ()
) -> Iterator[OpenedLog]:
    """Open a log. `renames` and `knobs` apply to another program's logs, as in the command `import`. Raises ConfigError
    if the source is unreadable, or if it is neither a path nor the name of a run."""
    path = Path(source)
    folder = _run_folder(path) if path.exists() else _find_run(source)
    if folder is not None:
        if renames:
            raise ConfigError(f"--rename does not work with a run's own log ({source}), only with sources for `import`")
        has_folder = (folder.path / "run.json").is_file()
        yield OpenedLog(folder.run, _log_reader(folder), folder.path if has_folder else None)
        return
    imported = read_source(path, renames)
    with imported.rows:
        name = _report_name(path)
        yield OpenedLog(name, lambda: imported.rows.events(name, knobs, imported.detail), imported=imported)


def _find_run(name: str) -> RunFolder:
    try:
        return Home().find(name)
    except UnknownNameError as error:
        raise ConfigError(f"{name} is not a file or folder, and {error}") from error


def _report_name(path: Path) -> str:
    """Return a name for reports: the file's or folder's name, limited to the characters of a run's name."""
    name = re.sub(r"[^a-zA-Z0-9_-]", "-", path.absolute().name).strip("-_")[:48]
    return name if names.NAME.fullmatch(name) else "run"


def _run_folder(path: Path) -> RunFolder | None:
    """Return the run's folder, or a substitute if only the log file exists. Return None for any other path."""
    file = path / "log.jsonl" if path.is_dir() else path
    if path.is_dir() and (path / "run.json").is_file():
        return RunFolder(path.absolute())
    if file.suffix != ".jsonl" or not file.is_file():
        return None
    try:
        with file.open("rb") as lines:
            first_event = json.loads(lines.readline(1 << 20))
        _, run, _ = first_event["subject"].split(".", 2)  # oven.RUN.KIND
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(first_event.get("seq"), int) or not first_event["subject"].startswith("oven."):
        return None
    folder = RunFolder(file.absolute().parent)
    folder.run, folder.export = run, file
    return folder


def _log_reader(folder: RunFolder) -> Callable[[], Iterable[Event]]:
    """Return a function that reads and verifies the run's log. The learner's public key, which vouches for the others,
    comes from the folder, or else from the log."""
    learner_key = folder.pin() if (folder.path / "run.json").is_file() else None

    async def read_store() -> list[Event]:
        return [event async for event in LocalRun(folder).events(exact=True)]

    def events() -> Iterable[Event]:
        if folder.is_locked() or not folder.has_complete_log():  # the file lacks the newest events
            return asyncio.run(read_store())
        return map(Keyring(learner_key).verify, log_sources.exported_events(folder))

    return events
