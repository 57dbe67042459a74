"""Shell completion for the names of runs, agents, knobs and files.

Completion runs whenever the user presses Tab. It therefore reads only small files and parts of logs, takes no lock and
never raises. If a file is missing or damaged, completion offers fewer names.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import click

MAX_RUNS_READ = 20
"""Maximum number of runs whose run.json is read to find a running one."""
HEAD_BYTES = 1 << 18
"""Bytes at the start of a log that are searched for its first RunStarted."""
TAIL_BYTES = 1 << 20
"""Bytes at the end of a log that are searched for its newest decisions."""
MAX_DECISIONS = 20
"""Maximum number of decision ids to offer."""


def _completer(
    find_names: Callable[[click.Context, click.Parameter, str], Iterable[str]],
) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Decorate a function so that it returns only names that start with the incomplete word, or none on an error."""

    @functools.wraps(find_names)
    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        try:
            return [name for name in find_names(ctx, param, incomplete) if name.startswith(incomplete)]
        except Exception:
            return []

    return complete


@_completer
def runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterator[str]:
    """Return the names of runs, newest first."""
    return (folder.name for folder in _run_folders())


@_completer
def runs_or_paths(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterator[str]:
    yield from runs(ctx, param, incomplete)
    yield from _list_paths(incomplete)


@_completer
def runs_or_logs(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterator[str]:
    yield from runs(ctx, param, incomplete)
    yield from _list_paths(incomplete, ".jsonl")


@_completer
def installed_agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterable[str]:
    from oven_core import plugins

    return plugins.find_plugins("agents")


@_completer
def agents_or_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterator[str]:
    """Return installed agents and Python files."""
    yield from installed_agents(ctx, param, incomplete)
    yield from _list_paths(incomplete, ".py")


@_completer
def agents(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterable[str]:
    """Return the run's agents from its keys and settings, or the installed agents if neither names an agent."""
    folder = _find_run(ctx)
    if folder is None:
        return installed_agents(ctx, param, incomplete)
    users = _read_json(folder / "nats" / "users.json") or ()
    names = [name for user in users if user["role"] == "agent" for name in user.get("agents") or [user["name"]]]
    names += (_read_json(folder / "config.json") or {}).get("agents") or ()
    return sorted({Path(name).stem for name in names}) or installed_agents(ctx, param, incomplete)


@_completer
def knobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterable[str]:
    """Return the knobs that the chosen run announced, or all known knobs if it announced none."""
    return _read_knobs(_find_run(ctx)) or votable_knobs(ctx, param, incomplete)


@_completer
def judges(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterator[str]:
    """Return the committee members whose judges can be swapped in the chosen run."""
    return (name.removeprefix("committee.") for name in _read_knobs(_find_run(ctx)) if name.startswith("committee."))


@_completer
def decisions(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterator[str]:
    """Return the newest decisions' ids, newest first, then the knobs. Omit leading zeros unless the user typed one."""
    newest = list(_read_messages(_find_run(ctx), "Decision", from_end=True))[-MAX_DECISIONS:]
    for body in reversed(newest):
        decision_id = str(body["id"])
        yield decision_id if incomplete.startswith("0") else decision_id.lstrip("0") or decision_id
    yield from knobs(ctx, param, incomplete)


@_completer
def votable_knobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> Iterable[str]:
    from oven_controller.importing.declared_knobs import VOTABLE_KNOBS

    return VOTABLE_KNOBS


def _run_folders() -> list[Path]:
    """Return the run folders, most recently updated first."""
    # Home validates every run.json with pydantic, which is too slow for completion.
    files = (Path(os.environ.get("OVEN_HOME") or ".oven") / "runs").glob("*/run.json")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True)]


def _find_run(ctx: click.Context) -> Path | None:
    """Return the folder of the run on the command line, else of a run that has not ended, else of the newest run."""
    typed_name = ctx.params.get("run") or ctx.params.get("run_")
    folders = _run_folders()
    if isinstance(typed_name, str):
        return next((folder for folder in folders if folder.name == typed_name), None)
    for folder in folders[:MAX_RUNS_READ]:
        if not (_read_json(folder / "run.json") or {}).get("ended"):
            return folder
    return folders[0] if folders else None


def _read_json(path: Path) -> Any:
    """Return the content of a JSON file, or None if it is missing or invalid."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def _read_knobs(folder: Path | None) -> list[str]:
    specs: list[dict[str, Any]] = next((body["actuators"] for body in _read_messages(folder, "RunStarted")), [])
    specs += [body["actuator"] for body in _read_messages(folder, "ActuatorAnnounced")]
    return list(dict.fromkeys(str(spec["name"]) for spec in specs))


def _read_messages(folder: Path | None, kind: str, *, from_end: bool = False) -> Iterator[dict[str, Any]]:
    """Yield the messages of one type near the beginning or the end of a run's log."""
    if folder is None or not (folder / "log.jsonl").exists():
        return
    with (folder / "log.jsonl").open("rb") as log:
        if from_end:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - TAIL_BYTES))
        lines = log.read(TAIL_BYTES if from_end else HEAD_BYTES).splitlines()
    for line in lines:
        if f'"{kind}"'.encode() in line:
            try:
                body = json.loads(line)["data"]
            except (ValueError, TypeError, KeyError, RecursionError):
                continue  # a line that is only partly in the bytes read
            if body["type"] == kind:
                yield body


def _list_paths(incomplete: str, suffix: str = "") -> Iterator[str]:
    """Return folders, and files with this suffix, as the shell would complete them."""
    parent, slash, prefix = incomplete.rpartition("/")
    for entry in sorted(os.scandir((parent + slash) or "."), key=lambda entry: entry.name):
        if entry.name.startswith(".") and not prefix:
            continue
        if entry.is_dir():
            yield f"{parent}{slash}{entry.name}/"
        elif entry.name.endswith(suffix):
            yield f"{parent}{slash}{entry.name}"
