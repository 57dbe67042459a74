"""Shell completion: names of runs, agents, knobs and files.

A completion runs at every press of the Tab key. It therefore reads a few small files as they lie on disk, imports
nothing heavy, takes no lock, and never raises: where something is missing or damaged, it offers less.
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
    "channel.replay", "channel.imitation", "channel.kg", "channel.mtp", "channel.z_loss", "reward.calibration",
    "reward.weights", "data.mixture", "teacher.active", "train.quantisation",
    "run.rollback", "run.undo_rollback", "run.evaluate", "run.checkpoint", "data.skip",
)  # fmt: skip
"""The knobs that the learner's own integrations can announce: offered where no run says which it has."""
LOOKED_AT = 20
"""Runs whose run.json is read to find the one that is up."""
HEAD_BYTES = 1 << 18
"""Of a log, in which its first RunStarted is looked for."""
TAIL_BYTES = 1 << 20
"""Of a log, in which its newest decisions are looked for."""
OFFERED = 20
"""Decisions that are offered."""
VERDICTS = ("adopted", "rejected", "advised")
"""Those of oven_runs.log.decision_row, which takes too long to import here."""
AGENT_ROLE = "agent"


def _quiet(found: Callable[P, Iterable[str]]) -> Callable[P, list[str]]:
    """The same as a list, which is empty where it raises."""

    @functools.wraps(found)
    def never_raises(*args: P.args, **kwargs: P.kwargs) -> list[str]:
        try:
            return list(found(*args, **kwargs))
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
    """The agents of the run that is meant; the installed ones where it says nothing of its own."""
    return (name for name in _agents_of(_meant(ctx)) or _installed() if name.startswith(incomplete))


@_quiet
def knobs(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """The knobs that the run that is meant has announced; those that are shipped where it has announced none."""
    return (name for name in _announced(_meant(ctx)) or SHIPPED if name.startswith(incomplete))


@_quiet
def judges(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """The committee members whose judges the run that is meant can swap."""
    found = (name.removeprefix("committee.") for name in _announced(_meant(ctx)) if name.startswith("committee."))
    return (name for name in found if name.startswith(incomplete))


@_quiet
def verdicts(incomplete: str) -> Iterator[str]:
    """A decision's."""
    return (name for name in VERDICTS if name.startswith(incomplete))


@_quiet
def decisions(ctx: typer.Context, incomplete: str) -> Iterator[str]:
    """The newest decisions of the run that is meant, the newest first, by their ids, without the leading zeros where
    none was typed; then its knobs."""
    ids = _decided(_meant(ctx))
    yield from (id_ for id_ in (ids if incomplete.startswith("0") else map(_short, ids)) if id_.startswith(incomplete))
    yield from knobs(ctx, incomplete)


@_quiet
def shipped_knobs(incomplete: str) -> Iterator[str]:
    return (name for name in SHIPPED if name.startswith(incomplete))


def _folders() -> list[Path]:
    """The runs' folders, the one that was written to last first."""
    # Home reads every run.json through pydantic, which takes longer to import than a completion may take.
    inside = Path(os.environ.get("OVEN_HOME") or ".oven") / "runs"
    found = []
    for entry in os.scandir(inside) if inside.is_dir() else ():
        try:
            found.append((os.stat(os.path.join(entry.path, "run.json")).st_mtime, Path(entry.path)))
        except OSError:
            continue
    return [path for _, path in sorted(found, reverse=True)]


def _meant(ctx: typer.Context) -> Path | None:
    """The run's folder: the one that was named, else one that has not ended, else the newest."""
    named = next((value for key in ("run", "run_") if isinstance(value := ctx.params.get(key), str)), "")
    folders = _folders()
    if named:
        return next((folder for folder in folders if folder.name == named), None)
    not_ended = (folder for folder in folders[:LOOKED_AT] if not _read(folder / "run.json").get("ended"))
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
    """Those that hold a key of the run, and those that its settings name."""
    if folder is None:
        return []
    found: list[str] = []
    try:
        for user in json.loads((folder / "nats" / "users.json").read_bytes()):
            if user["role"] == AGENT_ROLE:
                found += user.get("agents") or [user["name"]]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    found += [str(one) for one in _read(folder / "config.json").get("agents") or ()]
    return sorted({Path(name).stem for name in found})


def _announced(folder: Path | None) -> list[str]:
    if folder is None:
        return []
    try:
        with (folder / "log.jsonl").open("rb") as log:
            head = log.read(HEAD_BYTES).splitlines()
    except OSError:
        return []
    found: list[str] = []
    for line in head:
        if b"RunStarted" not in line and b"ActuatorAnnounced" not in line:
            continue
        try:
            data = json.loads(line)["data"]
            if data["type"] == "RunStarted" and not found:
                found += [str(spec["name"]) for spec in data["actuators"]]
            elif data["type"] == "ActuatorAnnounced":
                found.append(str(data["actuator"]["name"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
    return list(dict.fromkeys(found))


def _decided(folder: Path | None) -> list[str]:
    """The newest decisions' ids in the log as it lies on disk, the newest first."""
    if folder is None:
        return []
    try:
        with (folder / "log.jsonl").open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - TAIL_BYTES))
            lines = log.read(TAIL_BYTES).splitlines()
    except OSError:
        return []
    found = []
    for line in reversed(lines):
        if b'"Decision"' not in line:
            continue
        try:
            entry = json.loads(line)
            if entry["type"] == "Decision":
                found.append(str(entry["data"]["id"]))
        except (ValueError, TypeError, KeyError, RecursionError):
            continue
        if len(found) == OFFERED:
            break
    return found


def _short(id_: str) -> str:
    return id_.lstrip("0") or id_


def _paths(incomplete: str, suffix: str = "") -> Iterator[str]:
    """Folders, and files with this suffix, as the shell itself would offer them."""
    before, slash, begun = incomplete.rpartition("/")
    for entry in sorted(os.scandir((before + slash) or "."), key=lambda one: one.name):
        if not entry.name.startswith(begun) or (entry.name.startswith(".") and not begun):
            continue
        if entry.is_dir():
            yield f"{before}{slash}{entry.name}/"
        elif entry.name.endswith(suffix):
            yield f"{before}{slash}{entry.name}"
