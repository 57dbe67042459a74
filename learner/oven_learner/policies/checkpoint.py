"""Checkpoints of a PolicyTrainer. Training that resumes from one gives the same results as without an interruption. A
file next to the checkpoint record contains the trainer's full state. Here, `trainer` is always a PolicyTrainer."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful

from oven_core.errors import ConfigError, reason
from oven_learner.policies.batch import restore_batch
from oven_learner.rollback import checkpoint_record
from oven_learner.rollback.checkpoint_record import TRAINER_STATE, Record

STATE_FILE = "policy_trainer.pt"
MAX_CHECKPOINTS = 2
"""Maximum number of checkpoints. Older ones are deleted."""
TRAINER_NUMBER = "1"
"""The trainer's number within its script, for the checkpoint record. A PolicyTrainer always counts as the first."""


def save(trainer: Any, output: Path) -> Path:
    """Write `checkpoint-STEP` to `output`, and return its path. An interrupted write leaves no valid checkpoint."""
    folder = output / f"checkpoint-{trainer.step}"
    checkpoint_record.begin(folder)
    torch.save(trainer_state(trainer), folder / STATE_FILE)
    (folder / TRAINER_STATE).write_text(json.dumps({"global_step": trainer.step}) + "\n")
    client = trainer.client
    specs = client.actuators.specs() if client is not None else ()
    position = client.position() if client is not None else {"incarnation": 0, "n": 0, "tick": 0}
    record = Record(
        **position,
        run=os.environ.get("OVEN_RUN", ""),
        training=TRAINER_NUMBER,
        step=trainer.step,
        trained=trainer.completed_updates,
        fresh=False,
        own=False,
        world=1,
        actuators={spec.name: spec.value for spec in specs if spec.kind != "action"},
        model=_parameter_shapes(trainer),
    )
    checkpoint_record.finish(folder, record)
    complete = [path for path in checkpoint_record.all_checkpoints(output) if not checkpoint_record.find_defect(path)]
    oldest_first = sorted(complete, key=lambda path: (path / checkpoint_record.RECORD).stat().st_mtime_ns)
    for path in oldest_first[:-MAX_CHECKPOINTS]:
        shutil.rmtree(path, ignore_errors=True)
    return folder


def newest(output: Path) -> Path | None:
    """Return the newest complete checkpoint of this run in `output`, or None."""
    latest = checkpoint_record.find_newest(output, os.environ.get("OVEN_RUN", ""), TRAINER_NUMBER)
    return latest[0] if latest is not None else None  # without the checkpoint's record


def abandon_after(output: Path | None, step: int) -> None:
    """Mark the checkpoints of steps after `step` as abandoned, because training was rolled back to `step`."""
    if output is None:
        return
    run = os.environ.get("OVEN_RUN", "")
    for path, record in list(checkpoint_record.complete_checkpoints(output, run, TRAINER_NUMBER)):
        if record.step > step:
            checkpoint_record.rewrite(path, record.model_copy(update={"abandoned": f"rolled back to step {step}"}))


def load(trainer: Any, folder: Path) -> None:
    """Restore a trainer that was created with the same arguments. Training then continues as if it had not been
    interrupted. Teachers are not restored, because the trainer's constructor creates them. Raises ConfigError for
    a checkpoint that is incomplete or from another run."""
    checkpoint_record.read_for_resume(folder, os.environ.get("OVEN_RUN", ""), _parameter_shapes(trainer))
    try:
        state: dict[str, Any] = torch.load(folder / STATE_FILE, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ConfigError(
            f"{folder / STATE_FILE} cannot be loaded ({reason(error)}). If it contains custom condition objects, use "
            "strings, numbers or tensors instead."
        ) from error
    trainer.policy.load_state_dict(state["policy"])
    trainer.optimizer.load_state_dict(state["optimizer"])
    for target, saved_state in ((trainer.scheduler, state["scheduler"]), (trainer.source, state["source"])):
        if isinstance(target, Stateful) and saved_state is not None:
            target.load_state_dict(saved_state)
    if trainer.scoring.committee is not None and state.get("committee") is not None:
        trainer.scoring.committee.load_state_dict(state["committee"])
    trainer.step, trainer.completed_updates = state["step"], state["position"]
    trainer.skipped_steps = state["skipped"]
    trainer.conditions = list(state["conditions"])
    trainer.beta, trainer.epsilon = state["beta"], (state["epsilon"][0], state["epsilon"][1])
    if state["teacher"]:
        trainer.teachers.swap(state["teacher"])
    device = next(trainer.policy.parameters()).device
    trainer.batch = restore_batch(state["batch"], device) if state["batch"] is not None else None


def trainer_state(trainer: Any) -> dict[str, Any]:
    """Return the contents of STATE_FILE, which are tensors and plain values."""
    batch, scheduler, source = trainer.batch, trainer.scheduler, trainer.source
    has_more_updates = bool(trainer.completed_updates % trainer.config.updates_per_batch)
    return {
        "policy": trainer.policy.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "scheduler": scheduler.state_dict() if isinstance(scheduler, Stateful) else None,
        "source": source.state_dict() if isinstance(source, Stateful) else None,
        "committee": trainer.scoring.committee.state_dict() if trainer.scoring.committee is not None else None,
        "step": trainer.step,
        "position": trainer.completed_updates,
        "skipped": trainer.skipped_steps,
        "conditions": trainer.conditions,
        "beta": trainer.beta,
        "epsilon": list(trainer.epsilon),
        "teacher": trainer.teachers.active,
        "batch": batch.state_dict() if batch is not None and has_more_updates else None,
    }


def _parameter_shapes(trainer: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(parameter.shape) for name, parameter in trainer.policy.named_parameters()}
