"""A log to look at, wherever it is: a run's, by its name or folder, a log.jsonl alone, or another training's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from oven_controller.importing.command import read
from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol import names
from oven_core.protocol.events import Event
from oven_core.security.signing import Keyring
from oven_runs.access import log_reader, log_sources
from oven_runs.home.run_folder import Home, RunFolder


@contextlib.contextmanager
def opened(source: str) -> Iterator[tuple[str, Callable[[], Iterable[Event]], Path | None]]:
    """Its name, its events, judged, as often as they are asked for, and the run's folder where there is one.
    Raises ConfigError where there is nothing that can be read."""
    folder = logged(source)
    if folder is not None:
        yield folder.run, reader(folder), folder.path if (folder.path / "run.json").is_file() else None
        return
    path = Path(source)
    found = read(path, {})
    with found.rows:
        name = report_name(path)
        yield name, lambda: found.rows.events(name, (), found.detail), None


def logged(source: str) -> RunFolder | None:
    """The run that is meant, by its path or its name; None: a path that holds no run's log. Raises ConfigError for what
    is neither a path nor a run."""
    if Path(source).exists():
        return _log(Path(source))
    known = [folder.run for folder in Home().runs()]
    if source not in known:
        near = UnknownNameError("run", source, known)
        raise ConfigError(f"there is no file or folder {source}, and {near}")
    return Home().find(source)


def report_name(path: Path) -> str:
    """What a report calls it: the file's or folder's name, in the letters that a run's may have."""
    text = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "-" for c in path.absolute().name).strip("-_")
    return text[:48] if names.NAME.fullmatch(text[:48]) else "run"


def _log(path: Path) -> RunFolder | None:
    """A run's folder, or what stands for one where only its log is there; None: it is not a run's log."""

    file = path / "log.jsonl" if path.is_dir() else path
    if path.is_dir() and (path / "run.json").is_file():
        return RunFolder(path.absolute())
    if file.suffix != ".jsonl" or not file.is_file():
        return None
    try:
        with file.open("rb") as lines:
            first = json.loads(lines.readline(1 << 20))
        _, run, _ = first["subject"].split(".", 2)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    if not isinstance(first.get("seq"), int) or not first["subject"].startswith("oven."):
        return None
    folder = RunFolder(file.absolute().parent)
    folder.run, folder.export = run, file
    return folder


def reader(folder: RunFolder) -> Callable[[], Iterable[Event]]:
    """Its log, judged by its keys; by those that it names itself where the run's folder has none."""

    pin = folder.pin() if (folder.path / "run.json").is_file() else None

    def events() -> Iterable[Event]:
        if folder.locked() or not folder.exported():
            return asyncio.run(log_reader.whole_log(folder, exact=True))
        return map(Keyring(pin).verify, log_sources.exported(folder))

    return events
