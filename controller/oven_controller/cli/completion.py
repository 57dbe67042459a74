"""Shell completion for the names of runs, agents, knobs and files.

Completion runs whenever the user presses Tab. So it reads only a few small files, takes no lock and never raises. If a
file is missing or damaged, it offers fewer names.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ParamSpec

import typer

P = ParamSpec("P")

RECENT_RUNS = 20
"""Maximum runs whose run.json is read to find a running one."""
HEAD_BYTES = 1 << 18
"""Bytes at the start of a log that are searched for its first RunStarted."""
TAIL_BYTES = 1 << 20
"""Bytes at the end of a log that are searched for its newest decisions."""
MAX_DECISIONS = 20


def _quiet(names: Callable[P, Iterable[str]]) -> Callable[P, list[str]]:
    """Return the names that start with the function's last argument. If the function raises, return an empty list."""

    @functools.wraps(names)
    def never_raises(*args: P.args, **kwargs: P.kwargs) -> list[str]:
        incomplete = str([*args, *kwargs.values()][-1])
        try:
            return [name for name in names(*args, **kwargs) if name.startswith(incomplete)]
        except Exception:
            return []

    return never_raises


@_quiet
def runs(incomplete: str) -> Iterator[str]:
    """Return the names of runs, newest first."""
    return (folder.name for folder in _folders())


@_quiet
def runs_or_paths(incomplete: str) -> Iterator[str]:
    yield from runs(incomplete)
    yield from _paths(incomplete)


@_quiet
def runs_or_logs(incomplete: str) -> Iterator[str]:
    yield from runs(incomplete)
    yield from _paths(incomplete, ".jsonl")


@_quiet
def installed_agents(incomplete: str) -> Iterable[str]:
    from oven_core import plugins

    return plugins.find_plugins("agents")


@_quiet
def agents_or_files(incomplete: str) -> Iterator[str]:
    """Return installed agents and Python files."""
    yield from installed_agents(incomplete)
    yield from _paths(incomplete, ".py")


@_quiet
def agents(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the run's agents with a key or in its settings; the installed agents if there are none."""
    folder = _chosen_run(ctx)
    users = (_read(folder / "nats" / "users.json") or ()) if folder else ()
    names = [name for user in users if user["role"] == "agent" for name in user.get("agents") or [user["name"]]]
    names += (_read(folder / "config.json") or {}).get("agents") or () if folder else ()
    return sorted({Path(name).stem for name in names}) or installed_agents(incomplete)


@_quiet
def knobs(ctx: typer.Context, incomplete: str) -> Iterable[str]:
    """Return the knobs that the command's run announced; all possible knobs if it announced none."""
    return _announced(_chosen_run(ctx)) or shipped_knobs(incomplete)


@_quiet
def judges(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Return the committee members whose judges the command's run can swap."""
    return (name.removeprefix("committee.") for name in _announced(_chosen_run(ctx)) if name.startswith("committee."))


@_quiet
def decisions(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """Return the ids of the newest decisions of the command's run, newest first, then its knobs. Leading zeros are
    omitted unless the user typed one."""
    newest = list(_bodies(_chosen_run(ctx), "Decision", from_end=True))[: -MAX_DECISIONS - 1 : -1]
    ids = [str(body["id"]) for body in newest]
    yield from ids if incomplete.startswith("0") else (id_.lstrip("0") or id_ for id_ in ids)
    yield from knobs(ctx, incomplete)


@_quiet
def shipped_knobs(incomplete: str) -> Iterable[str]:
    from oven_controller.importing.declared_knobs import VOTABLE_ACTUATORS

    return VOTABLE_ACTUATORS


def _folders() -> list[Path]:
    """Return the folders of runs, the most recently written first."""
    # Home reads every run.json through pydantic, which takes longer than a completion may take.
    files = (Path(os.environ.get("OVEN_HOME") or ".oven") / "runs").glob("*/run.json")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]


def _chosen_run(ctx: typer.Context) -> Path | None:
    """Return the folder of the run on the command line, else of a run that has not ended, else of the newest run."""
    typed = next((value for key in ("run", "run_") if isinstance(value := ctx.params.get(key), str)), "")
    folders = _folders()
    if typed:
        return next((folder for folder in folders if folder.name == typed), None)
    not_ended = (folder for folder in folders[:RECENT_RUNS] if not (_read(folder / "run.json") or {}).get("ended"))
    return next(not_ended, folders[0] if folders else None)


def _read(path: Path) -> Any:
    """Return the value in a JSON file; None if there is none."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _announced(folder: Path | None) -> list[str]:
    specs: list[dict[str, Any]] = next((body["actuators"] for body in _bodies(folder, "RunStarted")), [])
    specs += [body["actuator"] for body in _bodies(folder, "ActuatorAnnounced")]
    return list(dict.fromkeys(str(spec["name"]) for spec in specs))


def _bodies(folder: Path | None, kind: str, *, from_end: bool = False) -> Iterator[dict[str, Any]]:
    """Return the messages of one type near the beginning or the end of a run's log."""
    if folder is None or not (folder / "log.jsonl").exists():
        return
    with (folder / "log.jsonl").open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES) if from_end else 0)
        lines = log.read(TAIL_BYTES if from_end else HEAD_BYTES).splitlines()
    for line in lines:
        if b'"' + kind.encode() + b'"' in line:
            try:
                body = json.loads(line)["data"]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # it was cut
            if body["type"] == kind:
                yield body


def _paths(incomplete: str, suffix: str = "") -> Iterator[str]:
    """Return folders and files with this suffix, as the shell would offer them."""
    before, slash, start = incomplete.rpartition("/")
    for entry in sorted(os.scandir((before + slash) or "."), key=lambda entry: entry.name):
        if entry.name.startswith(".") and not start:
            continue
        if entry.is_dir():
            yield f"{before}{slash}{entry.name}/"
        elif entry.name.endswith(suffix):
            yield f"{before}{slash}{entry.name}"
