"""Records in checkpoint folders that show which checkpoints are complete and which one to roll back to.

The trainer writes `checkpoint-N/` file by file. Before its first file the folder gets the mark `oven.part`. After its
last one `oven.json` is written aside and renamed, with the size of every file, and then the mark is removed. So a
checkpoint is complete if it has no mark and every file has its recorded size. Nothing here imports torch.
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
    """The content of oven.json: facts that the files of TRL and transformers lack. Tensors are in `oven-rank-R.pt`."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    v: Literal[1] = 1
    run: str = Field(description="empty: the learner did not know")
    training: str = Field(description="which training of its script saved it (RunStarted.training)")
    incarnation: int = Field(ge=0)
    n: int = Field(
        ge=0, description="with the incarnation: the learner's last message before it, so its position in the log"
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
    """Mark the folder as incomplete: the trainer is about to write into it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / PART).touch()
    (folder / RECORD).unlink(missing_ok=True)


def finish(folder: Path, record: Record) -> None:
    """Record the file sizes and remove the mark: the checkpoint is complete."""
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (RECORD, PART)
    }
    rewrite(folder, record.model_copy(update={"files": files}))
    (folder / PART).unlink(missing_ok=True)


def rewrite(folder: Path, record: Record) -> None:
    """Replace the record of the checkpoint."""
    write_atomic(folder / RECORD, record.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> Record | None:
    """Return the record; None if the controller did not take part in the save. Raises ConfigError if it is damaged."""
    try:
        return Record.model_validate_json((folder / RECORD).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{folder / RECORD} cannot be read ({reason(error)}); resume from another checkpoint"
        ) from error


def problem(folder: Path) -> str:
    """Return the fault of a checkpoint, in words with the figures; empty if it is complete."""
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
        if (present := path.stat().st_size) != size:
            return f"{path} has {present} bytes, and had {size} when the checkpoint was written"
    try:
        json.loads((folder / TRAINER_STATE).read_text())
    except FileNotFoundError:
        return f"{folder} has no {TRAINER_STATE}, which the trainer writes last: it was never finished"
    except (OSError, ValueError) as error:
        return f"{folder / TRAINER_STATE} cannot be read ({reason(error)})"
    return ""


def step_of(folder: Path) -> int:
    """Return the step in the folder's name; -1 if the name is not that of a checkpoint."""
    match = _NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else -1


def in_folder(output: Path) -> list[Path]:
    """Return all checkpoints there, complete or not, in the order of their steps."""
    checkpoints = [path for path in output.glob("checkpoint-*") if path.is_dir() and step_of(path) >= 0]
    return sorted(checkpoints, key=step_of)


def complete(output: Path, run: str, training: str) -> Iterator[tuple[Path, Record]]:
    """Yield the complete checkpoints of one training of the run, without those that a rollback has abandoned."""
    for path in in_folder(output):
        if problem(path):
            continue
        record = read(path)
        if record is not None and (record.run, record.training) == (run, training) and not record.abandoned:
            yield path, record


def newest(output: Path, run: str, training: str, tick: int | None = None) -> tuple[Path, Record] | None:
    """Return the newest complete checkpoint up to `tick`. Ticks never go back, while steps do in a rollback."""
    candidates = [entry for entry in complete(output, run, training) if tick is None or entry[1].tick <= tick]
    return max(candidates, key=lambda entry: (entry[1].tick, entry[1].step), default=None)


def abandon(output: Path, run: str, training: str, after_tick: int, why: str) -> None:
    """Mark later checkpoints as abandoned: a rollback to `after_tick` has discarded their steps."""
    for path, record in list(complete(output, run, training)):
        if record.tick > after_tick:
            rewrite(path, record.model_copy(update={"abandoned": why}))


def to_resume(output: Path, run: str, training: str) -> Path | None:
    """Return the checkpoint that `resume_from_checkpoint=True` means.

    This is the training's newest checkpoint, or else the one with the highest step that does not belong to another
    training of this run. Incomplete checkpoints are skipped. Raises ConfigError if all are incomplete.
    """
    if (own := newest(output, run, training)) is not None:
        return own[0]
    candidates = [path for path in in_folder(output) if not is_of_other_training(path, run, training)]
    usable = [path for path in candidates if not problem(path) and not _is_abandoned(path, run)]
    if usable:
        return usable[-1]
    if candidates:
        why = problem(candidates[-1]) or "all were rolled back"
        raise ConfigError(f"no checkpoint in {output} can be resumed: {why}")
    return None


def _is_abandoned(path: Path, run: str) -> bool:
    record = read(path)
    return record is not None and record.run == run and bool(record.abandoned)


def is_of_other_training(path: Path, run: str, training: str) -> bool:
    """Whether another training of this run saved it. False if the record is damaged."""
    try:
        record = read(path)
    except ConfigError:
        return False
    return record is not None and record.run == run and record.training != training


def checked(folder: Path, run: str, model: dict[str, tuple[int, ...]]) -> Record | None:
    """Return the record of a checkpoint that training is about to resume from; None if it has no record.

    Raises ConfigError if it is incomplete, of another run, or of another model.
    """
    if not folder.is_dir():
        existing = ", ".join(path.name for path in in_folder(folder.parent)) or "none"
        raise ConfigError(f"there is no checkpoint {folder}; beside it there are: {existing}")
    if why := problem(folder):
        usable = [path.name for path in in_folder(folder.parent) if not problem(path)]
        remedy = f"resume from {usable[-1]}" if usable else "begin anew without resume_from_checkpoint"
        raise ConfigError(f"{why}; {remedy}")
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
    differences = [
        f"{name} is {_shape(saved.get(name))} in it and {_shape(present.get(name))} in the trainer"
        for name in [*saved, *(name for name in present if name not in saved)]
        if saved.get(name) != present.get(name)
    ]
    more = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
    return "; ".join(differences[:3]) + more


def _shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "×".join(map(str, shape)) or "a number"
