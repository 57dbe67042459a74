"""Records in checkpoint folders, which show which checkpoints are complete and when they were saved. The trainer writes
`checkpoint-N/` file by file. Before the first file, the marker `oven.part` is created in the folder. After the last
one, `oven.json` is written atomically with the size of every file, and then the marker is removed. A checkpoint is
complete if it has no marker and every file has its recorded size. This module does not import torch."""

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

RECORD, INCOMPLETE_MARKER = "oven.json", "oven.part"
TRAINER_STATE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-(\d+)")


class Record(BaseModel):
    """The content of oven.json: the data that TRL and transformers do not save. Tensors are in `oven-rank-R.pt`."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="strings")

    v: Literal[1] = 1
    run: str = Field(description="name of the run, or empty if the learner does not know it")
    training: str = Field(description="number of the training run in its script (RunStarted.training)")
    incarnation: int = Field(ge=0)
    n: int = Field(ge=0, description="number of the learner's last message before the save, in this incarnation")
    tick: int = Field(ge=0)
    step: int = Field(ge=0)
    trained: int = Field(ge=0, description="gradient steps so far, including those discarded by rollbacks")
    fresh: bool = Field(description="whether the run started without a checkpoint, so its script can start over")
    own: bool = Field(description="whether it was saved on a schedule, for rollback, instead of on request")
    world: int = Field(ge=1, description="number of ranks")
    actuators: dict[str, Value] = Field(default_factory=dict, description="actuator → value, without actions")
    model: dict[str, tuple[int, ...]] = Field(default_factory=dict, description="parameter → shape")
    files: dict[str, int] = Field(default_factory=dict, description="path below the folder → bytes")
    inexact: tuple[str, ...] = Field(default=(), description="reasons why training does not continue exactly as before")
    abandoned: str = Field(default="", description="the rollback that discarded this checkpoint, or empty")


def begin(folder: Path) -> None:
    """Mark the folder as incomplete, because the trainer is about to write to it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / INCOMPLETE_MARKER).touch()
    (folder / RECORD).unlink(missing_ok=True)


def finish(folder: Path, record: Record) -> None:
    """Mark the checkpoint as complete, by recording the file sizes and removing the marker."""
    files = {
        str(path.relative_to(folder)): path.stat().st_size
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in (RECORD, INCOMPLETE_MARKER)
    }
    rewrite(folder, record.model_copy(update={"files": files}))
    (folder / INCOMPLETE_MARKER).unlink(missing_ok=True)


def rewrite(folder: Path, record: Record) -> None:
    """Replace the record of the checkpoint."""
    write_atomic(folder / RECORD, record.model_dump_json(indent=1) + "\n")


def read(folder: Path) -> Record | None:
    """Return the record, or None if the checkpoint has none. Raises ConfigError if the record is damaged."""
    try:
        return Record.model_validate_json((folder / RECORD).read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        raise ConfigError(
            f"{folder / RECORD} cannot be read ({reason(error)}); resume from another checkpoint"
        ) from error


def find_defect(folder: Path) -> str:
    """Return the reason why a checkpoint is not complete, or an empty string if it is complete."""
    if not folder.is_dir():
        return f"{folder} is not a folder"
    if (folder / INCOMPLETE_MARKER).exists():
        cause = "because training stopped while it was being written"
        return f"{folder} was never finished (it contains {INCOMPLETE_MARKER}), {cause}"
    try:
        record = read(folder)
    except ConfigError as error:
        return str(error)
    for name, size in (record.files if record else {}).items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing; it had {size} bytes when the checkpoint was written"
        current_size = path.stat().st_size
        if current_size != size:
            return f"{path} has {current_size} bytes, but had {size} when the checkpoint was written"
    try:
        json.loads((folder / TRAINER_STATE).read_text())
    except FileNotFoundError:
        return f"{folder} was never finished (it has no {TRAINER_STATE}, which the trainer writes last)"
    except (OSError, ValueError) as error:
        return f"{folder / TRAINER_STATE} cannot be read ({reason(error)})"
    return ""


def step_of(folder: Path) -> int:
    """Return the step in the folder's name, or -1 if this is not a checkpoint's name."""
    match = _NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else -1


def all_checkpoints(output: Path) -> list[Path]:
    """Return all checkpoints in the folder, complete or not, in the order of their steps."""
    checkpoints = [path for path in output.glob("checkpoint-*") if path.is_dir() and step_of(path) >= 0]
    return sorted(checkpoints, key=step_of)


def complete_checkpoints(output: Path, run: str, training: str) -> Iterator[tuple[Path, Record]]:
    """Yield the complete checkpoints of one training run, without those that a rollback has abandoned."""
    for path in all_checkpoints(output):
        if find_defect(path):
            continue
        record = read(path)
        if record is not None and (record.run, record.training) == (run, training) and not record.abandoned:
            yield path, record


def find_newest(output: Path, run: str, training: str, tick: int | None = None) -> tuple[Path, Record] | None:
    """Return the newest complete checkpoint up to `tick`. Order by tick, because a rollback decreases only the step."""
    checkpoints = complete_checkpoints(output, run, training)
    candidates = [(path, record) for path, record in checkpoints if tick is None or record.tick <= tick]
    return max(candidates, key=lambda entry: (entry[1].tick, entry[1].step), default=None)


def abandon(output: Path, run: str, training: str, after_tick: int, cause: str) -> None:
    """Mark later checkpoints as abandoned, because a rollback to `after_tick` has discarded their steps."""
    for path, record in list(complete_checkpoints(output, run, training)):
        if record.tick > after_tick:
            rewrite(path, record.model_copy(update={"abandoned": cause}))


def checkpoint_to_resume(output: Path, run: str, training: str) -> Path | None:
    """Return the checkpoint for `resume_from_checkpoint=True`, or None if there is none. This is the newest checkpoint
    of the training run, or else the checkpoint with the highest step that does not belong to another training run.
    Incomplete checkpoints are skipped. Raises ConfigError if all are incomplete."""
    latest = find_newest(output, run, training)
    if latest is not None:
        return latest[0]
    candidates = [path for path in all_checkpoints(output) if not is_of_other_training(path, run, training)]
    usable = [path for path in candidates if not find_defect(path) and not _is_abandoned(path, run)]
    if usable:
        return usable[-1]
    if candidates:
        last_problem = find_defect(candidates[-1]) or "all of them were rolled back"
        raise ConfigError(f"no checkpoint in {output} can be resumed: {last_problem}")
    return None


def _is_abandoned(path: Path, run: str) -> bool:
    record = read(path)
    return record is not None and record.run == run and bool(record.abandoned)


def is_of_other_training(path: Path, run: str, training: str) -> bool:
    """Whether another training run in the same run saved the checkpoint. False if the record is damaged."""
    try:
        record = read(path)
    except ConfigError:
        return False
    return record is not None and record.run == run and record.training != training


def read_for_resume(folder: Path, run: str, model: dict[str, tuple[int, ...]]) -> Record | None:
    """Return the record of a checkpoint from which training is about to resume, or None if it has no record. Raises
    ConfigError if the checkpoint is incomplete, or from another run or model."""
    if not folder.is_dir():
        existing = ", ".join(path.name for path in all_checkpoints(folder.parent)) or "none"
        raise ConfigError(f"there is no checkpoint {folder}; checkpoints in the same folder: {existing}")
    folder_problem = find_defect(folder)
    if folder_problem:
        usable = [path.name for path in all_checkpoints(folder.parent) if not find_defect(path)]
        remedy = f"resume from {usable[-1]}" if usable else "start over without resume_from_checkpoint"
        raise ConfigError(f"{folder_problem}; {remedy}")
    record = read(folder)
    if record is None:
        return None
    if run and record.run and record.run != run:
        raise ConfigError(
            f"{folder} is from run {record.run!r}, but this is run {run!r}; continue it with `oven-controller run "
            f"--resume --run {record.run} -- COMMAND`, or delete {RECORD} from it to start a new run with its weights"
        )
    differences = _describe_differences(record.model, model)
    if differences:
        raise ConfigError(
            f"{folder} is from another model: {differences}; resume with the model of the checkpoint, or start over "
            "without resume_from_checkpoint"
        )
    return record


def _describe_differences(saved: dict[str, tuple[int, ...]], current: dict[str, tuple[int, ...]]) -> str:
    """Describe the parameters with different shapes, or return an empty string."""
    differences = [
        f"{name} is {_describe_shape(saved.get(name))} in the checkpoint "
        f"and {_describe_shape(current.get(name))} in the trainer"
        for name in [*saved, *(name for name in current if name not in saved)]
        if saved.get(name) != current.get(name)
    ]
    suffix = f", and {len(differences) - 3} more" if len(differences) > 3 else ""
    return "; ".join(differences[:3]) + suffix


def _describe_shape(shape: tuple[int, ...] | None) -> str:
    return "missing" if shape is None else "×".join(map(str, shape)) or "a number"
