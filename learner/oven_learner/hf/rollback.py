"""What a trainer's run goes back to: copies in memory where they fit, else its own checkpoints and a restart."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable
from typing import Any

import torch
from transformers import Trainer

from oven_learner.hf.checkpoints import TrainerCheckpoints
from oven_learner.optim import snapshot
from oven_learner.optim.lr_scale import LearningRateScale
from oven_learner.optim.snapshot import copied, trained_state
from oven_learner.ranks import Ranks
from oven_learner.rollback.in_memory import CREDIT_S, KEPT, Snapshots
from oven_learner.rollback.on_disk import OnDisk, Resumable
from oven_learner.rollback.rollback_protocol import Rollback
from oven_runs.home import relaunch


def snapshots_fit(trainer: Trainer, count: int) -> bool:
    """Whether `count` snapshots (what trains, and two Adam moments of each) stay below the limit, and can be taken at
    all: a sharded model's parts cannot be copied rank by rank."""
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled or trainer.model is None:
        return False
    return count * snapshot_size(trainer) <= snapshot.LIMIT_BYTES


def snapshot_size(trainer: Trainer) -> int:
    """Bytes of what trains and two Adam moments of it, and of what channels keep; of this rank's part, where the model
    is sharded."""
    assert trainer.model is not None
    others = beside(trainer).values()
    kept = sum(buffer.numel() * buffer.element_size() for module in others for buffer in module.buffers())
    return kept + sum(snapshot.size(module) for module in (trainer.model, *others))


def take_snapshot(trainer: Trainer) -> tuple[int, dict[str, Any]]:
    """Waits for the device before and after, so that what it costs can be measured by the clock."""
    _wait(trainer)
    scheduler = _bare(trainer.lr_scheduler)
    state = {
        "step": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "model": copied(trained_state(_model(trainer))),
        "beside": {name: copied(module.state_dict()) for name, module in beside(trainer).items()},
        "optimizer": copied(_bare_optimizer(trainer).state_dict()),
        "scheduler": copy.deepcopy(scheduler.state_dict()),
    }
    _wait(trainer)
    return trainer.state.global_step, state


@torch.no_grad()
def restore_snapshot(trainer: Trainer, state: dict[str, Any]) -> None:
    """The learning-rate scale stays: it is an actuator, and is set again on the rates that come back."""
    scale = LearningRateScale(trainer.optimizer, trainer.lr_scheduler).read()
    _model(trainer).load_state_dict(state["model"], strict=False)
    for name, module in beside(trainer).items():
        module.load_state_dict(state["beside"][name])
    _bare_optimizer(trainer).load_state_dict(copied(state["optimizer"]))
    _bare(trainer.lr_scheduler).load_state_dict(copy.deepcopy(state["scheduler"]))
    rates = LearningRateScale(trainer.optimizer, trainer.lr_scheduler)
    if rates.read() != scale:
        rates.write(scale)
    trainer.state.global_step = state["step"]
    trainer.state.epoch = state["epoch"]
    # The trainer's own log divides the loss since its last line by the steps since then: both begin anew here.
    inside: Any = trainer
    if hasattr(inside, "_globalstep_last_logged"):
        inside._globalstep_last_logged = state["step"]
    if isinstance(getattr(inside, "_tr_loss", None), torch.Tensor):
        inside._tr_loss.zero_()
    if hasattr(trainer, "_buffered_inputs"):
        trainer._buffered_inputs = None  # TRL: completions of the policy that was left behind
    if hasattr(trainer, "_last_loaded_step"):
        trainer._last_loaded_step = -1  # TRL: the step whose weights vLLM has; the step that comes back has others


def beside(trainer: Any) -> dict[str, torch.nn.Module]:
    """What loss channels train beside the model, by their names."""
    channels = getattr(trainer, "channels", ())
    return {channel.name: channel.module for channel in channels if channel.module is not None}


def _wait(trainer: Trainer) -> None:
    if trainer.args.device.type == "cuda":
        torch.cuda.synchronize(trainer.args.device)


def _model(trainer: Trainer) -> torch.nn.Module:
    model: torch.nn.Module = trainer.accelerator.unwrap_model(trainer.model)
    return model


def _bare(scheduler: Any) -> Any:
    return getattr(scheduler, "scheduler", scheduler)


def _bare_optimizer(trainer: Trainer) -> Any:
    return getattr(trainer.optimizer, "optimizer", trainer.optimizer)


def choose_rollback(
    trainer: Trainer,
    checkpoints: TrainerCheckpoints,
    ranks: Ranks,
    *,
    lockstep: bool,
    resumable: bool,
    ask: Callable[[], object],
    trained: Callable[[], int],
) -> Rollback | None:
    """None where neither is possible: too large to copy, and no one who starts the process again, or checkpoints
    without an optimizer. `resumable`: checkpoints are taken beside copies too, for a process that is killed. `ask` has
    the trainer save after this step; `trained`: gradient steps of the run so far."""
    copies = None
    if snapshots_fit(trainer, KEPT + 2):
        # In lockstep what is gone back to must not depend on the clock.
        copies = Snapshots(
            lambda: take_snapshot(trainer),
            lambda kept: restore_snapshot(trainer, kept),
            credit=math.inf if lockstep else CREDIT_S,
            share=ranks.same,
        )
        if not resumable:
            return copies
    if checkpoints.run_folder is None or relaunch.OFFERED not in os.environ or trainer.args.save_only_model:
        return copies
    disk = OnDisk(
        checkpoints.output,
        checkpoints.run,
        checkpoints.run_folder,
        training=checkpoints.training,
        size=snapshot_size(trainer),
        fresh=checkpoints.origin.fresh,
        ask=ask,
        progress=lambda: (trainer.state.global_step, trained()),
        leader=ranks.leader,
        share=ranks.same,
    )
    return disk if copies is None else Resumable(copies, disk)
