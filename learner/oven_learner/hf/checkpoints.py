"""Completes the checkpoints of a Hugging Face or TRL trainer with missing state, and resumes from a checkpoint.

transformers saves weights, optimizer, scheduler, step and the global random generators. transformers and TRL omit some
state, so that a resumed run differs from an uninterrupted one. This module also saves that state, on every
rank:

- The private generator of a sampler (TRL's RepeatSampler shuffles each epoch with one).
- GRPO's generation buffer and the position in it, if the buffer is in use.
- The state of user objects passed to `attach`, such as a data mixture with its timeline.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from transformers import Trainer, TrainerControl, TrainerState

from oven_core.errors import ConfigError, OvenError, reason
from oven_learner import ranks, trainer_internals
from oven_learner.client.oven_client import OvenClient
from oven_learner.hf.hooks.step_hooks import StepHook
from oven_learner.hf.training_length import StepBudget
from oven_learner.rollback import checkpoint_record
from oven_learner.rollback.checkpoint_record import Record
from oven_learner.rollback.disk_checkpoints import DiskCheckpoints
from oven_learner.rollback.memory_snapshots import Snapshots
from oven_learner.rollback.rollback_protocol import Rollback
from oven_runs.home import relaunch
from oven_runs.home.relaunch import Relaunch

log = logging.getLogger("oven.learner")


@dataclass
class Origin:
    """The checkpoint that this training run resumes from."""

    path: Path | None = None
    record: Record | None = None
    relaunch: Relaunch | None = None
    """The rollback that has started this process, if one has."""
    rank_state: dict[str, Any] = field(default_factory=dict)
    """The additional state of this rank."""

    @property
    def fresh(self) -> bool:
        """Whether the run started without a checkpoint, so that its script can start over."""
        return self.record.fresh if self.record else self.path is None

    def steps_before(self, step: int) -> int:
        """Return the number of gradient steps before this training run, including those that rollbacks threw away."""
        if self.relaunch is not None:
            return self.relaunch.trained
        return self.record.trained if self.record else step


class TrainerCheckpoints:
    """The checkpoints of one trainer. `run` is empty if the run's name is unknown, and on all ranks except rank 0."""

    def __init__(
        self, trainer: Trainer, run: str, stateful: Mapping[str, Stateful], get_name: Callable[[], str] = lambda: "1"
    ) -> None:
        """`get_name` returns the name of this training run, unique in the script. Called once, when training begins."""
        self.origin = Origin()
        self._get_name = get_name
        self._trainer: Any = trainer
        self.run, self._stateful = run, dict(stateful)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._generator: torch.Generator | None = None
        self._epoch_generator_state: torch.Tensor | None = None
        """The state of the sampler's private generator before it shuffled the current epoch."""
        self._save_began_at: float | None = None
        self._resume_from = os.environ.get(relaunch.RESUME_FROM, "")
        folder = os.environ.get("OVEN_RUN_DIR")
        self.run_folder = Path(folder) if folder else None
        save = trainer.save_model

        def save_model(output_dir: str | None = None, *args: Any, **kwargs: Any) -> Any:
            """Record when the trainer starts to write a checkpoint. The model is the first part that it saves."""
            if output_dir is not None and checkpoint_record.step_of(Path(output_dir)) >= 0:
                self._begin_save(Path(output_dir))
            return save(output_dir, *args, **kwargs)

        trainer.save_model = save_model  # type: ignore[method-assign]

    @cached_property
    def training(self) -> str:
        """The name of this training run (RunStarted.training), determined at the first `train()`."""
        return self._get_name()

    @property
    def output(self) -> Path:
        return Path(self._trainer.args.output_dir)

    def choose(self, requested: str | bool | None) -> str | bool | None:
        """Return the checkpoint to resume from, on every rank. `requested` is the argument `resume_from_checkpoint`.
        The checkpoint of a rollback takes precedence, followed by a path from the script, and then `--resume`. Raises
        ConfigError if the checkpoint cannot be used."""
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        self._shapes = self._shapes or {
            name: tuple(getattr(parameter, "ds_shape", parameter.shape))  # with ZeRO-3, `shape` is that of a shard
            for name, parameter in model.named_parameters()
        }
        self.training  # noqa: B018, determines the name on every rank, before anything can fail
        choice: tuple[Path | None, Record | None, Relaunch | None] | OvenError | None
        try:
            choice = self._choose_on_leader(requested) if ranks.rank() == 0 else None
        except OvenError as error:
            choice = error
        choice = ranks.broadcast_on_trainer_group(choice)
        if isinstance(choice, OvenError):
            raise choice
        assert choice is not None
        path, record, pending_relaunch = choice
        self.origin = Origin(path, record, pending_relaunch, self._load_rank_state(path, record))
        if path is None:
            return None
        self._log_differences(path, record)
        return str(path)

    def restore(self, dataloader: Any) -> None:
        """Restore the additional state. Called after the trainer has restored its own."""
        rank_state = self.origin.rank_state
        self._find_generator(dataloader)
        if self._generator is not None and rank_state.get("sampler") is not None:
            self._generator.set_state(rank_state["sampler"])
        trainer_internals.restore_buffer(self._trainer, rank_state)
        for name, state in rank_state.get("stateful", {}).items():
            if name in self._stateful:
                self._stateful[name].load_state_dict(state)

    def finish_relaunch(self) -> None:
        """Complete the rollback that started this process. Called when the run is announced."""
        if self.origin.relaunch is not None and self.run_folder is not None and ranks.rank() == 0:
            relaunch.remove(self.run_folder)

    def on_epoch_begin(self, dataloader: Any) -> None:
        self._find_generator(dataloader)
        self._epoch_generator_state = self._generator.get_state() if self._generator is not None else None

    def complete(self, step: int, build_record: Callable[..., Record]) -> tuple[Path, float, float] | None:
        """Add this rank's state, and on rank 0 the record, to the checkpoint that the trainer has written. All ranks
        must call this. `build_record` gets the run, training, model, world and fresh fields. Return the folder and the
        times when the save began and ended, or None if nothing was saved."""
        folder = self.output / f"checkpoint-{step}"
        if self._save_began_at is None or not folder.is_dir():
            return None
        torch.save(self._collect_state(), folder / _rank_file(ranks.rank()))
        ranks.barrier()  # the other ranks may still be writing
        if ranks.rank() == 0:
            names, world, fresh = {"run": self.run, "training": self.training}, ranks.world_size(), self.origin.fresh
            checkpoint_record.finish(folder, build_record(**names, model=self._shapes, world=world, fresh=fresh))
        began_at, self._save_began_at = self._save_began_at, None
        return folder, began_at, time.monotonic()

    def _begin_save(self, folder: Path) -> None:
        self._save_began_at = time.monotonic()
        if ranks.rank() == 0:
            checkpoint_record.begin(folder)

    def _choose_on_leader(self, requested: str | bool | None) -> tuple[Path | None, Record | None, Relaunch | None]:
        """Return the checkpoint to resume from, its record, and the rollback that started this process."""
        pending = relaunch.read(self.run_folder) if self.run_folder is not None else None
        resume_from, self._resume_from = self._resume_from, ""  # only for the first `train()`
        if pending is not None and pending.training != self.training:
            # The rollback is for another training run, so this one continues.
            pending = None
            resume_from = relaunch.LATEST
        path: Path | None
        if pending is not None:
            path = None if pending.checkpoint == relaunch.START else Path(pending.checkpoint)
            log.info("continuing after a rollback: %s", pending.reason)
        elif requested and requested is not True:
            path = Path(requested)
        elif resume_from == relaunch.START:
            path = None
        elif resume_from and resume_from != relaunch.LATEST and self._is_of_this_training(Path(resume_from)):
            path = Path(resume_from)
        elif resume_from or requested:
            path = self._find_latest(required=requested is True and not resume_from)
        else:
            path = None
        record = checkpoint_record.read_for_resume(path, self.run, self._shapes) if path else None
        return path, record, pending

    def _find_latest(self, *, required: bool) -> Path | None:
        if required:
            if path := checkpoint_record.checkpoint_to_resume(self.output, self.run, self.training):
                return path
            raise ConfigError(
                f"resume_from_checkpoint=True, but {self.output} contains no checkpoint of this training run; omit "
                "it to start over, or pass the folder of a checkpoint"
            )
        newest = checkpoint_record.find_newest(self.output, self.run, self.training)
        if newest is None:
            log.warning("--resume: %s has no complete checkpoint of this run; training starts over", self.output)
        return newest[0] if newest else None

    def _is_of_this_training(self, checkpoint: Path) -> bool:
        """Whether the checkpoint belongs to this training run. A script may have several, in one or more folders."""
        is_here = checkpoint.parent.resolve() == self.output.resolve()
        return is_here and not checkpoint_record.is_of_other_training(checkpoint, self.run, self.training)

    def _load_rank_state(self, path: Path | None, record: Record | None) -> dict[str, Any]:
        if path is None or record is None:
            return {}
        file = path / _rank_file(ranks.rank())
        if not file.is_file():
            return {}
        try:
            rank_state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ConfigError(
                f"cannot read {file} ({reason(error)}); resume from another checkpoint, or remove "
                f"{checkpoint_record.RECORD} to continue without this state"
            ) from error
        return rank_state

    def _log_differences(self, path: Path, record: Record | None) -> None:
        reasons: list[str] = []
        if record is None:
            reasons.append("it was saved without the controller, which adds state that the trainer omits")
        else:
            reasons += record.inexact
            if record.world != ranks.world_size():
                reasons.append(f"it was saved by {record.world} ranks, but this run has {ranks.world_size()}")
            missing_names = sorted(set(self._stateful) - set(self.origin.rank_state.get("stateful", {})))
            if missing_names:
                reasons.append(f"it has no state of {', '.join(missing_names)}")
        if self._trainer.args.ignore_data_skip:
            reasons.append("ignore_data_skip starts over with the data")
        if reasons:
            message = "resuming from %s, but training will not be bit-for-bit identical: %s"
            log.warning(message, path, "; ".join(reasons))
        else:
            log.info("resuming from %s", path)

    def inexact_reasons(self, discarded_steps: int) -> tuple[str, ...]:
        """Return the reasons why a run that resumes from a checkpoint saved now would differ from this run."""
        reasons = []
        if discarded_steps:
            reasons.append(f"the run was rolled back in place by {discarded_steps} steps, but its data was not")
        if getattr(self._trainer, "use_vllm", False):
            reasons.append("vLLM's own random generator is not saved")
        return tuple(reasons)

    def _find_generator(self, dataloader: Any) -> None:
        batches: Any = getattr(dataloader, "batch_sampler", None)
        while hasattr(batches, "batch_sampler"):  # accelerate wraps it to shard batches and to skip some
            batches = batches.batch_sampler
        generator = getattr(getattr(batches, "sampler", None), "generator", None)
        self._generator = generator if isinstance(generator, torch.Generator) else None

    def _collect_state(self) -> dict[str, Any]:
        """Return the additional state of this rank. The state of the sampler's generator is the one before it shuffled
        the current epoch, so that a resumed run repeats the same order. After an epoch, it is the current state."""
        epoch_is_over = float(self._trainer.state.epoch or 0).is_integer()
        generator_state = self._generator.get_state() if self._generator is not None else None
        return {
            "sampler": generator_state if epoch_is_over else self._epoch_generator_state,
            "stateful": {name: stateful.state_dict() for name, stateful in self._stateful.items()},
            **trainer_internals.buffer_state(self._trainer),
        }


class SaveSchedule(StepHook):
    """Makes the trainer save a checkpoint on request, when the run stops, and for rollback."""

    def __init__(self, checkpoints: TrainerCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._requested = self._due_for_rollback = self._saving_for_rollback = False

    def request(self) -> None:
        """Request a checkpoint after this step."""
        self._requested = True

    def request_for_rollback(self) -> None:
        """Request a checkpoint for rollback after this step, unless the trainer saves one anyway."""
        self._due_for_rollback = True

    def after_poll(self, control: TrainerControl, client: OvenClient) -> None:
        if client.restart_reason:
            control.should_save = False  # the rollback discards this state
        elif self._requested or (client.stopping and not client.out_of_time):
            control.should_save = True
        elif self._due_for_rollback and not control.should_save:
            control.should_save = self._saving_for_rollback = True
        self._requested = self._due_for_rollback = False

    def on_save(self, state: TrainerState, client: OvenClient, budget: StepBudget, rollback: Rollback | None) -> None:
        """Complete the checkpoint that the trainer has written. All ranks must call this."""
        is_for_rollback, self._saving_for_rollback = self._saving_for_rollback, False
        completed = self._checkpoints.complete(
            state.global_step,
            lambda **other_fields: Record(
                **other_fields,
                **client.position(),
                step=state.global_step,
                trained=budget.total,
                own=is_for_rollback,
                actuators={spec.name: spec.value for spec in client.actuators.specs() if spec.kind != "action"},
                inexact=self._checkpoints.inexact_reasons(budget.discarded_steps(state.global_step)),
            ),
        )
        disk = rollback.disk if isinstance(rollback, Snapshots) else rollback
        if completed is not None and isinstance(disk, DiskCheckpoints):
            folder, save_began, save_ended = completed
            disk.on_saved(folder, client.tick, save_began, save_ended, is_scheduled=is_for_rollback)


def _rank_file(rank: int) -> str:
    return f"oven-rank-{rank}.pt"
