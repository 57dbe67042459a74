"""The JSON output of `runs --json`."""

from __future__ import annotations

from dataclasses import dataclass, field

from oven_core.security import tls
from oven_runs.home.run_folder import Home, OnUnreadableRun, RunFolder, ignore_unreadable


@dataclass(frozen=True, slots=True)
class ListedRun:
    """One run in the list: its run.json and status."""

    run: str
    status: str = field(metadata={"description": "running, completed, stopped, failed or interrupted"})
    recipe: str
    start: str
    drill: str = field(metadata={"description": "the fault that was staged, if this run is a drill"})
    created: str = field(metadata={"description": "RFC 3339, UTC"})
    url: str
    folder: str


def listed_runs(home: Home, on_unreadable: OnUnreadableRun = ignore_unreadable) -> list[ListedRun]:
    """Return every run of the home, newest first. `on_unreadable` is passed to Home.runs."""
    return [_listed_run(folder) for folder in home.runs(on_unreadable)]


def _listed_run(folder: RunFolder) -> ListedRun:
    info = folder.info()
    return ListedRun(
        run=folder.run,
        status=folder.status(),
        recipe=info.recipe,
        start=info.start,
        drill=info.drill,
        created=info.created,
        url=tls.redact(info.url),
        folder=str(folder.path),
    )
