"""Shell completion: names of runs, agents, knobs and files.

A completion runs at every press of the Tab key. It therefore reads only a few small files, imports nothing heavy,
takes no lock, and never raises: if a file is missing or damaged, it offers fewer names.
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

SHIPPED = (
    "optimizer.lr_scale", "optimizer.weight_decay", "grad.clip", "grpo.beta", "grpo.epsilon", "grpo.epsilon_high",
    "rloo.beta", "rloo.epsilon", "dpo.beta", "distillation.beta", "channel.distill", "channel.sft", "channel.sdpo",
    "channel.kg", "channel.mtp", "channel.z_loss", "reward.calibration",
    "reward.weights", "data.mixture", "teacher.active", "train.quantisation",
    "run.rollback", "run.undo_rollback", "run.evaluate", "run.checkpoint", "data.skip",
)  # fmt: skip
"""The knobs that the learner's own integrations can announce, offered if no run announces its knobs."""
RECENT_RUNS = 20
"""Runs whose run.json is read to find the one that is up."""
HEAD_BYTES = 1 << 18
"""Length of the start of a log that is searched for its first RunStarted."""
TAIL_BYTES = 1 << 20
"""Length of the end of a log that is searched for its newest decisions."""
MAX_DECISIONS = 20
VERDICTS = ("adopted", "rejected", "advised")
"""The verdicts of oven_runs.log.decision_row, which would take too long to import."""
AGENT_ROLE = "agent"


def _quiet(names: Callable[P, Iterable[str]]) -> Callable[P, list[str]]:
    """Make a list of the names, which is empty if the function raises."""

    @functools.wraps(names)
    def never_raises(*args: P.args, **kwargs: P.kwargs) -> list[str]:
        try:
            return list(names(*args, **kwargs))
        except Exception:
            return []

    return never_raises


@_quiet
def runs(incomplete: str) -> Iterator[str]:
    """Names of runs, the newest first."""
    return (folder.name for folder in _folders() if folder.name.startswith(incomplete))


@_quiet
def runs_or_paths(incomplete: str) -> Iterator[str]:
    yield from runs(incomplete)
    yield from _paths(incomplete)


@_quiet
def runs_or_logs(incomplete: str) -> Iterator[str]:
    yield from runs(incomplete)
    yield from _paths(incomplete, ".jsonl")


@_quiet
def installed_agents(incomplete: str) -> Iterator[str]:
    return (name for name in _installed() if name.startswith(incomplete))


@_quiet
def agents_or_files(incomplete: str) -> Iterator[str]:
    """Installed agents, and Python files."""
    yield from installed_agents(incomplete)
    yield from _paths(incomplete, ".py")


@_quiet
def agents(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """The agents of the command's run; the installed ones if the run names none."""
    return (name for name in _agents_of(_chosen_run(ctx)) or _installed() if name.startswith(incomplete))


@_quiet
def knobs(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """The knobs that the command's run announced; the shipped ones if it announced none."""
    return (name for name in _announced(_chosen_run(ctx)) or SHIPPED if name.startswith(incomplete))


@_quiet
def judges(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """The committee members whose judges the command's run can swap."""
    announced = _announced(_chosen_run(ctx))
    members = (name.removeprefix("committee.") for name in announced if name.startswith("committee."))
    return (name for name in members if name.startswith(incomplete))


@_quiet
def verdicts(incomplete: str) -> Iterator[str]:
    return (name for name in VERDICTS if name.startswith(incomplete))


@_quiet
def decisions(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """The ids of the newest decisions of the command's run, newest first, then its knobs. Leading zeros are omitted
    unless one was typed."""
    ids = _decision_ids(_chosen_run(ctx))
    yield from (id_ for id_ in (ids if incomplete.startswith("0") else map(_short, ids)) if id_.startswith(incomplete))
    yield from knobs(ctx, incomplete)


@_quiet
def shipped_knobs(incomplete: str) -> Iterator[str]:
    return (name for name in SHIPPED if name.startswith(incomplete))


def _folders() -> list[Path]:
    """The folders of runs, the most recently written first."""
    # Home reads every run.json through pydantic, which takes longer to import than a completion may take.
    inside = Path(os.environ.get("OVEN_HOME") or ".oven") / "runs"
    folders = []
    for entry in os.scandir(inside) if inside.is_dir() else ():
        try:
            folders.append((os.stat(os.path.join(entry.path, "run.json")).st_mtime, Path(entry.path)))
        except OSError:
            continue
    return [path for _, path in sorted(folders, reverse=True)]


def _chosen_run(ctx: typer.Context) -> Path | None:
    """The folder of the run on the command line, else of one that has not ended, else of the newest."""
    typed = next((value for key in ("run", "run_") if isinstance(value := ctx.params.get(key), str)), "")
    folders = _folders()
    if typed:
        return next((folder for folder in folders if folder.name == typed), None)
    not_ended = (folder for folder in folders[:RECENT_RUNS] if not _read(folder / "run.json").get("ended"))
    return next(not_ended, folders[0] if folders else None)


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _installed() -> list[str]:
    from oven_core import plugins

    return list(plugins.points("agents"))


def _agents_of(folder: Path | None) -> list[str]:
    """The agents with a key of the run, and those in its settings."""
    if folder is None:
        return []
    names: list[str] = []
    try:
        for user in json.loads((folder / "nats" / "users.json").read_bytes()):
            if user["role"] == AGENT_ROLE:
                names += user.get("agents") or [user["name"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    names += [str(name) for name in _read(folder / "config.json").get("agents") or ()]
    return sorted({Path(name).stem for name in names})


def _announced(folder: Path | None) -> list[str]:
    if folder is None:
        return []
    try:
        with (folder / "log.jsonl").open("rb") as log:
            head = log.read(HEAD_BYTES).splitlines()
    except OSError:
        return []
    names: list[str] = []
    for line in head:
        if b"RunStarted" not in line and b"ActuatorAnnounced" not in line:
            continue
        try:
            data = json.loads(line)["data"]
            if data["type"] == "RunStarted" and not names:
                names += [str(spec["name"]) for spec in data["actuators"]]
            elif data["type"] == "ActuatorAnnounced":
                names.append(str(data["actuator"]["name"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return list(dict.fromkeys(names))


def _decision_ids(folder: Path | None) -> list[str]:
    """The ids of the newest decisions in the log file, newest first."""
    if folder is None:
        return []
    try:
        with (folder / "log.jsonl").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = log.read(TAIL_BYTES).splitlines()
    except OSError:
        return []
    ids: list[str] = []
    for line in reversed(lines):
        if b'"Decision"' not in line:
            continue
        try:
            entry = json.loads(line)
            if entry["type"] == "Decision":
                ids.append(str(entry["data"]["id"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if len(ids) == MAX_DECISIONS:
            break
    return ids


def _short(id_: str) -> str:
    return id_.lstrip("0") or id_


def _paths(incomplete: str, suffix: str = "") -> Iterator[str]:
    """Folders, and files with this suffix, as the shell would offer them."""
    before, slash, start = incomplete.rpartition("/")
    for entry in sorted(os.scandir((before + slash) or "."), key=lambda entry: entry.name):
        if not entry.name.startswith(start) or (entry.name.startswith(".") and not start):
            continue
        if entry.is_dir():
            yield f"{before}{slash}{entry.name}/"
        elif entry.name.endswith(suffix):
            yield f"{before}{slash}{entry.name}"
