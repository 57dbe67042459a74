"""Checkpoints on disk as the controller sees them: what it writes beside the trainer's own files, which of them are
complete, and which of them a run goes back to. Nothing here imports torch.

The trainer writes `checkpoint-N/` file by file. Before its first file the folder gets the mark `oven.part`; after its
last one `oven.json` is written aside and renamed, with the size of every file, and then the mark goes. So a checkpoint
counts when it has no mark and every file has the size that it had.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_core.protocol.messages import Value

RECORD, PART = "oven.json", "oven.part"
TRAINER_STATE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")


class Record(BaseModel):
    """oven.json: what TRL's and transformers' own files leave out. Tensors are in `oven-rank-R.pt`."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    v: Literal[1] = 1
    run: str = Field(description="empty: the learner did not know")
    training: str = Field(description="which training of its script saved it (RunStarted.training)")
    incarnation: int = Field(ge=0)
    n: int = Field(
        ge=0, description="with the incarnation: the learner's last message before it, so its place in the log"
    )
    tick: int = Field(ge=0)
    step: int = Field(ge=0)
    trained: int = Field(ge=0, description="gradient steps so far, those that rollbacks threw away included")
    fresh: bool = Field(description="the run began without a checkpoint, so its script can begin anew")
    own: bool = Field(description="taken for rollback, by the controller's rhythm; else somebody wanted it")
    world: int = Field(ge=1, description="ranks")
    actuators: dict[str, Value] = Field(default_factory=dict, description="the value of each, actions apart")
    model: dict[str, tuple[int, ...]] = Field(default_factory=dict, description="parameter → shape")
    files: dict[str, int] = Field(default_factory=dict, description="path below the folder → bytes")
    inexact: tuple[str, ...] = Field(default=(), description="why continuing from it is not bit for bit, if it is not")
    abandoned: str = Field(default="", description="the rollback that left it behind; empty: it counts")


def begin(folder: Path) -> None:
    """The trainer is about to write into the folder: from now on it is half-written."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PART).touch()
    (folder / RECORD).unlink(missing_ok=True)


def finish(folder: Path, record: Record) -> None:
    """All is written: the sizes are taken, and the checkpoint counts."""
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (RECORD, PART)
    }
    rewrite(folder, record.model_copy(update={"files": files}))
    (folder / PART).unlink(missing_ok=True)


def rewrite(folder: Path, record: Record) -> None:
    write_atomic(folder / RECORD, record.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> Record | None:
    """None in a checkpoint that was made without the controller. Raises ConfigError when the record is damaged."""
    try:
        return Record.model_validate_json((folder / RECORD).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{folder / RECORD} cannot be read ({reason(error)}); resume from another checkpoint"
        ) from error


def problem(folder: Path) -> str:
    """What is missing in a checkpoint, in words with its figures; empty when it is complete."""
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if (folder / PART).exists():
        return f"{folder} was never finished ({PART} is in it): the training ended while it was being written"
    try:
        record = read(folder)
    except ConfigError as error:
        return str(error)
    for name, size in (record.files if record else {}).items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing; it had {size} bytes when the checkpoint was written"
        if (now := path.stat().st_size) != size:
            return f"{path} has {now} bytes, and had {size} when the checkpoint was written"
    try:
        json.loads((folder / TRAINER_STATE).read_text())
    except FileNotFoundError:
        return f"{folder} has no {TRAINER_STATE}, which the trainer writes last: it was never finished"
    except (OSError, ValueError) as error:
        return f"{folder / TRAINER_STATE} cannot be read ({reason(error)})"
    return ""


def step_of(folder: Path) -> int:
    """From its name; -1 for a folder that is called otherwise."""
    match = _NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else -1


def in_folder(output: Path) -> list[Path]:
    """All checkpoints there, complete or not, in the order of their steps."""
    found = [path for path in output.glob("checkpoint-*") if path.is_dir() and step_of(path) >= 0]
    return sorted(found, key=step_of)


def complete(output: Path, run: str, training: str) -> Iterator[tuple[Path, Record]]:
    """The complete checkpoints of one training of the run that no rollback has left behind."""
    for path in in_folder(output):
        if problem(path):
            continue
        record = read(path)
        if record is not None and (record.run, record.training) == (run, training) and not record.abandoned:
            yield path, record


def newest(output: Path, run: str, training: str, tick: int | None = None) -> tuple[Path, Record] | None:
    """By tick, which never goes back, up to `tick`: the highest step may stand for a branch that was left."""
    fitting = [one for one in complete(output, run, training) if tick is None or one[1].tick <= tick]
    return max(fitting, key=lambda one: (one[1].tick, one[1].step), default=None)


def abandon(output: Path, run: str, training: str, after_tick: int, why: str) -> None:
    """A rollback to `after_tick`: what was saved later stands for steps that no longer count."""
    for path, record in list(complete(output, run, training)):
        if record.tick > after_tick:
            rewrite(path, record.model_copy(update={"abandoned": why}))


def to_resume(output: Path, run: str, training: str) -> Path | None:
    """What `resume_from_checkpoint=True` means: this training's newest, or else the furthest that somebody left there
    who was no other training of this run. Half-written ones are passed over. Raises ConfigError where only those are.
    """
    if (own := newest(output, run, training)) is not None:
        return own[0]
    left = [path for path in in_folder(output) if not of_another(path, run, training)]
    whole = [path for path in left if not problem(path) and not _left_behind(path, run)]
    if whole:
        return whole[-1]
    if left:
        raise ConfigError(f"no checkpoint in {output} can be resumed: {problem(left[-1]) or 'all were rolled back'}")
    return None


def _left_behind(path: Path, run: str) -> bool:
    record = read(path)
    return record is not None and record.run == run and bool(record.abandoned)


def of_another(path: Path, run: str, training: str) -> bool:
    """Whether another training of this run saved it; of one that is damaged no one knows."""
    try:
        record = read(path)
    except ConfigError:
        return False
    return record is not None and record.run == run and record.training != training


def checked(folder: Path, run: str, model: dict[str, tuple[int, ...]]) -> Record | None:
    """The record of a checkpoint that training is about to continue from; None: it was made without the controller.

    Raises ConfigError when it is half-written or cut, of another run, or of another model.
    """
    if not folder.is_dir():
        there = ", ".join(path.name for path in in_folder(folder.parent)) or "none"
        raise ConfigError(f"there is no checkpoint {folder}; beside it there are: {there}")
    if what := problem(folder):
        whole = [path.name for path in in_folder(folder.parent) if not problem(path)]
        remedy = f"resume from {whole[-1]}" if whole else "begin anew without resume_from_checkpoint"
        raise ConfigError(f"{what}; {remedy}")
    record = read(folder)
    if record is None:
        return None
    if run and record.run and record.run != run:
        raise ConfigError(
            f"{folder} is of run {record.run!r}, and this is run {run!r}: continue that one by `oven-controller run "
            f"--resume --run {record.run} -- COMMAND`, or remove {RECORD} from it to begin a new run with its weights"
        )
    if differing := _differences(record.model, model):
        raise ConfigError(
            f"{folder} is of another model: {differing}; resume with the model that it was saved from, or train "
            "anew without resume_from_checkpoint"
        )
    return record


def _differences(saved: dict[str, tuple[int, ...]], present: dict[str, tuple[int, ...]]) -> str:
    said = [
        f"{name} is {_shape(saved.get(name))} in it and {_shape(present.get(name))} in the trainer"
        for name in [*saved, *(name for name in present if name not in saved)]
        if saved.get(name) != present.get(name)
    ]
    more = f", and {len(said) - 3} more" if len(said) > 3 else ""
    return "; ".join(said[:3]) + more


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "×".join(map(str, shape)) or "a number"
