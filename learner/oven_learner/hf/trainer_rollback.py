"""Rollback of a trainer, with snapshots in memory if they fit, otherwise with the trainer's checkpoints and a restart.

A snapshot contains the trained weights, the optimizer, the scheduler's position and the step, but no values of knobs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch
from transformers import Trainer

from oven_learner import trainer_internals
from oven_learner.hf.checkpoints import TrainerCheckpoints
from oven_learner.optim import snapshot
from oven_learner.optim.lr_scale import LearningRateScale
from oven_learner.optim.sharding import can_copy_weights
from oven_learner.optim.snapshot import LoopSnapshot, copy_state, restored_state
from oven_learner.ranks import Ranks
from oven_learner.rollback.disk_checkpoints import DiskCheckpoints
from oven_learner.rollback.memory_snapshots import CREDIT_S, Snapshots
from oven_learner.rollback.rollback_protocol import Rollback
from oven_learner.rollback.snapshot_memory import plan_snapshots
from oven_runs.home import relaunch


def snapshot_size(trainer: Trainer) -> int:
    """Return the size of the trained weights, two Adam moments, and the buffers of loss channels, in bytes. For a
    sharded model, this is the size of this rank's shard."""
    assert trainer.model is not None
    channels = channel_modules(trainer).values()
    buffers = sum(buffer.numel() * buffer.element_size() for module in channels for buffer in module.buffers())
    return buffers + sum(snapshot.snapshot_bytes(module) for module in (trainer.model, *channels))


def take_snapshot(trainer: Trainer, device: torch.device | None = None) -> tuple[int, dict[str, Any]]:
    """Take a snapshot of the trainer, on `device` or on the devices of the originals. Return its step and state."""
    channels = {name: copy_state(module.state_dict(), device) for name, module in channel_modules(trainer).items()}
    position = {"step": trainer.state.global_step, "epoch": trainer.state.epoch}
    return trainer.state.global_step, {**position, "channels": channels, **_loop_snapshot(trainer, device).take()}


@torch.no_grad()
def restore_snapshot(trainer: Trainer, state: dict[str, Any]) -> None:
    """Restore the state of a snapshot. Keep the learning-rate scale, because it is the value of a knob."""
    scale_before = LearningRateScale(trainer.optimizer, trainer.lr_scheduler).read()
    _loop_snapshot(trainer).restore(state)
    for name, module in channel_modules(trainer).items():
        module.load_state_dict(restored_state(state["channels"][name], module.state_dict()))
    scale = LearningRateScale(trainer.optimizer, trainer.lr_scheduler)
    if scale.read() != scale_before:
        scale.write(scale_before)
    trainer.state.global_step, trainer.state.epoch = state["step"], state["epoch"]
    trainer_internals.reset_logged_loss(trainer, state["step"])
    trainer_internals.drop_buffer(trainer)  # completions of the abandoned policy
    trainer_internals.reload_vllm_weights(trainer)


def _loop_snapshot(trainer: Trainer, device: torch.device | None = None) -> LoopSnapshot:
    model = trainer.accelerator.unwrap_model(trainer.model)
    return LoopSnapshot(model, [LearningRateScale(trainer.optimizer, trainer.lr_scheduler)], device=device)


def channel_modules(trainer: Any) -> dict[str, torch.nn.Module]:
    """Return the modules that loss channels train in addition to the model, by the channel's name."""
    channels = getattr(trainer, "channels", ())
    return {channel.name: channel.module for channel in channels if channel.module is not None}


def can_copy(trainer: Trainer) -> bool:
    """Whether each rank can copy and restore its part of the weights by itself. `trainer.model` does not show that
    DeepSpeed shards it."""
    return can_copy_weights(trainer.model) and not trainer.is_deepspeed_enabled


def choose_rollback(
    trainer: Trainer,
    checkpoints: TrainerCheckpoints,
    ranks: Ranks,
    *,
    lockstep: bool,
    resumable: bool,
    request_save: Callable[[], object],
    trained_steps: Callable[[], int],
) -> Rollback | None:
    """Choose between snapshots in memory and checkpoints on disk. Checkpoints must contain the optimizer, and need a
    launcher that restarts the process. Return None if neither is possible.

    Args:
        resumable: whether to save checkpoints in addition to snapshots, in case the process is killed.
        request_save: makes the trainer save a checkpoint after this step.
        trained_steps: returns the number of gradient steps of the run so far.
    """
    in_memory = None
    memory = plan_snapshots(snapshot_size(trainer), ranks) if can_copy(trainer) else None
    if memory is not None:
        # In lockstep, the target of a rollback must not depend on the clock.
        in_memory = Snapshots(
            lambda: take_snapshot(trainer, memory.device),
            lambda state: restore_snapshot(trainer, state),
            credit=math.inf if lockstep else CREDIT_S,
            levels=memory.levels,
        )
        in_memory.use_ranks(ranks)
        if not resumable:
            return in_memory
    if checkpoints.run_folder is None or relaunch.SUPPORT_VARIABLE not in os.environ or trainer.args.save_only_model:
        return in_memory
    disk = DiskCheckpoints(
        checkpoints.output,
        checkpoints.run,
        checkpoints.run_folder,
        training=checkpoints.training,
        size=snapshot_size(trainer),
        fresh=checkpoints.origin.fresh,
        request_save=request_save,
        progress=lambda: (trainer.state.global_step, trained_steps()),
        leader=ranks.leader,
        broadcast=ranks.broadcast,
    )
    if in_memory is None:
        return disk
    in_memory.disk = disk
    return in_memory
