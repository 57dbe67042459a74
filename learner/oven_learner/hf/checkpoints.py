"""A Hugging Face or TRL trainer's checkpoints: what is added to them, and how training continues from one.

transformers 5.23 saves weights, optimizer, scheduler, step and the global random generators. What it and TRL 1.16 leave
out, and what a straight run therefore differs by after a resume, is saved beside that on every rank:

- the private generator of a sampler (TRL's RepeatSampler shuffles each epoch with one, trl/trainer/utils.py:908);
- GRPO's generation buffer and its place in it, where the save falls inside one (grpo_trainer.py:948, 951);
- the state of objects that the user handed to `attach`, such as a data mixture with its timeline.
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
from oven_learner import ranks
from oven_learner.client.client import OvenClient
from oven_learner.hf.hooks.step_hooks import StepHook
from oven_learner.hf.training_length import StepBudget
from oven_learner.rollback import checkpoint_record
from oven_learner.rollback.checkpoint_record import Record
from oven_learner.rollback.on_disk import OnDisk, Resumable
from oven_learner.rollback.rollback_protocol import Rollback
from oven_runs.home import relaunch
from oven_runs.home.relaunch import Relaunch

log = logging.getLogger("oven.learner")


@dataclass
class Origin:
    """What this training continues from."""

    path: Path | None = None
    record: Record | None = None
    relaunch: Relaunch | None = None
    """Set where a rollback led here."""
    beside: dict[str, Any] = field(default_factory=dict)
    """This rank's tensors and states."""

    @property
    def fresh(self) -> bool:
        return self.record.fresh if self.record else self.path is None

    def trained(self, step: int) -> int:
        """Gradient steps before this training, those that rollbacks threw away included."""
        if self.relaunch is not None:
            return self.relaunch.trained
        return self.record.trained if self.record else step


class TrainerCheckpoints:
    """One trainer's. `run` is empty where it is not known (and on the other ranks, which rank 0 tells)."""

    def __init__(
        self, trainer: Trainer, run: str, stateful: Mapping[str, Stateful], named: Callable[[], str] = lambda: "1"
    ) -> None:
        """`named` says once, when training begins, which training of the script this is."""
        self.origin = Origin()
        self._named = named
        self._trainer: Any = trainer
        self._run, self._stateful = run, dict(stateful)
        self._model: dict[str, tuple[int, ...]] = {}
        self._generator: torch.Generator | None = None
        self.epoch_order: torch.Tensor | None = None
        """The private generator's state from which the running epoch's order was drawn."""
        self._began: float | None = None
        self._asked = os.environ.get(relaunch.RESUME_FROM, "")
        folder = os.environ.get("OVEN_RUN_DIR")
        self.run_folder = Path(folder) if folder else None
        save = trainer.save_model

        def noticed(output_dir: str | None = None, *args: Any, **kwargs: Any) -> Any:
            """A checkpoint begins with the model; other saves go elsewhere."""
            if output_dir is not None and checkpoint_record.step_of(Path(output_dir)) >= 0:
                self._begin(Path(output_dir))
            return save(output_dir, *args, **kwargs)

        trainer.save_model = noticed  # type: ignore[method-assign]

    @cached_property
    def training(self) -> str:
        """Which one of its script (RunStarted.training); known from the first `train()` on."""
        return self._named()

    @property
    def output(self) -> Path:
        return Path(self._trainer.args.output_dir)

    def resumed(self, given: str | bool | None) -> str | bool | None:
        """What `train(resume_from_checkpoint=given)` is to be called with. The same on every rank.

        A rollback's checkpoint goes before anything else, a path that the script gives before `--resume`. Raises
        ConfigError when the checkpoint cannot be continued from, before anything is trained.
        """
        inside = self._trainer.accelerator.unwrap_model(self._trainer.model)
        self._model = self._model or {
            name: tuple(getattr(parameter, "ds_shape", parameter.shape))  # ZeRO-3 keeps a part of it only
            for name, parameter in inside.named_parameters()
        }
        self.training  # noqa: B018, counted before anything can fail, on every rank
        found: tuple[Path | None, Record | None, Relaunch | None] | OvenError | None
        try:
            found = self._found(given) if ranks.rank() == 0 else None
        except OvenError as error:
            found = error
        found = ranks.from_leader(found)
        if isinstance(found, OvenError):
            raise found
        assert found is not None
        path, record, again = found
        self.origin = Origin(path, record, again, self._beside(path, record))
        if path is None:
            return None
        self._say_what_differs(path, record)
        return str(path)

    def restore(self, dataloader: Any) -> None:
        """Puts back what the trainer does not; called when it has loaded its own."""
        beside = self.origin.beside
        self._see(dataloader)
        if self._generator is not None and beside.get("sampler") is not None:
            self._generator.set_state(beside["sampler"])
        if "generated" in beside:
            self._trainer._step = beside["generated"]
            self._trainer._buffered_inputs = _moved(beside["buffer"], self._trainer.args.device)
        for name, state in beside.get("stateful", {}).items():
            if name in self._stateful:
                self._stateful[name].load_state_dict(state)

    def went_on(self) -> None:
        """The run is announced: a rollback that led here is done with."""
        if self.origin.relaunch is not None and self.run_folder is not None and ranks.rank() == 0:
            relaunch.done(self.run_folder)

    def epoch_began(self, dataloader: Any) -> None:
        """Its order is drawn next."""
        self._see(dataloader)
        self.epoch_order = self._generator.get_state() if self._generator is not None else None

    def saved(self, step: int, record: Callable[[], Record]) -> tuple[Path, float, float] | None:
        """The trainer has written its files: add ours, and say that all is there. A collective. Returns the folder and
        when the save began and ended; None when it was not a checkpoint of this trainer's."""
        folder = self.output / f"checkpoint-{step}"
        if self._began is None or not folder.is_dir():
            return None
        torch.save(self._state(), folder / _beside(ranks.rank()))
        ranks.barrier()  # others may still be writing their parts
        if ranks.rank() == 0:
            checkpoint_record.finish(
                folder,
                record().model_copy(
                    update={
                        "run": self._run,
                        "training": self.training,
                        "model": self._model,
                        "world": ranks.world(),
                        "fresh": self.origin.fresh,
                    }
                ),
            )
        began, self._began = self._began, None
        return folder, began, time.monotonic()

    @property
    def run(self) -> str:
        return self._run

    def _begin(self, folder: Path) -> None:
        self._began = time.monotonic()
        if ranks.rank() == 0:
            checkpoint_record.begin(folder)

    def _found(self, given: str | bool | None) -> tuple[Path | None, Record | None, Relaunch | None]:
        again = relaunch.read(self.run_folder) if self.run_folder is not None else None
        asked, self._asked = self._asked, ""  # a second `train()` is the script's own affair
        if again is not None and again.training != self.training:
            again, asked = None, relaunch.LATEST  # another training of the script goes back; this one goes on
        path: Path | None
        if again is not None:
            path = None if again.checkpoint == relaunch.START else Path(again.checkpoint)
            log.info("continues after a rollback: %s", again.reason)
        elif given and given is not True:
            path = Path(given)
        elif asked == relaunch.START:
            path = None
        elif asked and asked != relaunch.LATEST and self._mine(Path(asked)):
            path = Path(asked)
        elif asked or given:
            path = self._latest(required=given is True and not asked)
        else:
            path = None
        return path, (checkpoint_record.checked(path, self._run, self._model) if path else None), again

    def _latest(self, *, required: bool) -> Path | None:
        if required:
            found = checkpoint_record.to_resume(self.output, self._run, self.training)
            if found is None:
                raise ConfigError(
                    f"resume_from_checkpoint=True, and {self.output} holds no checkpoint of this training; leave it "
                    "out to begin anew, or give the folder of one"
                )
            return found
        own = checkpoint_record.newest(self.output, self._run, self.training)
        if own is None:
            log.warning("--resume: %s holds no complete checkpoint of this run; training begins anew", self.output)
        return own[0] if own else None

    def _mine(self, checkpoint: Path) -> bool:
        """A script may train twice, in two folders or in one."""
        here = checkpoint.parent.resolve() == self.output.resolve()
        return here and not checkpoint_record.is_of_other_training(checkpoint, self._run, self.training)

    def _beside(self, path: Path | None, record: Record | None) -> dict[str, Any]:
        if path is None or record is None:
            return {}
        file = path / _beside(ranks.rank())
        if not file.is_file():
            return {}
        try:
            loaded: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise ConfigError(
                f"{file} cannot be read ({reason(error)}); resume from another checkpoint, or remove "
                f"{checkpoint_record.RECORD} to continue without what it holds"
            ) from error
        return loaded

    def _say_what_differs(self, path: Path, record: Record | None) -> None:
        reasons: list[str] = []
        if record is None:
            reasons.append("it was made without the controller, which saves what the trainer leaves out")
        else:
            reasons += record.inexact
            if record.world != ranks.world():
                reasons.append(f"it was saved by {record.world} ranks, and these are {ranks.world()}")
            if lacking := sorted(set(self._stateful) - set(self.origin.beside.get("stateful", {}))):
                reasons.append(f"it has no state of {', '.join(lacking)}")
        if self._trainer.args.ignore_data_skip:
            reasons.append("ignore_data_skip begins the data anew")
        if reasons:
            log.warning("resumes from %s, but not bit for bit as it would have continued: %s", path, "; ".join(reasons))
        else:
            log.info("resumes from %s", path)

    def inexact(self, thrown_away: int) -> tuple[str, ...]:
        """Why the straight run would continue otherwise than one that resumes from a checkpoint of now."""
        reasons = []
        if thrown_away:
            reasons.append(f"the run was rolled back in place by {thrown_away} steps, and its data continued meanwhile")
        if getattr(self._trainer, "use_vllm", False):
            reasons.append("vLLM's own random generator is not saved")
        return tuple(reasons)

    def _see(self, dataloader: Any) -> None:
        batches: Any = getattr(dataloader, "batch_sampler", None)
        while hasattr(batches, "batch_sampler"):  # accelerate wraps it, to shard it and to skip batches
            batches = batches.batch_sampler
        generator = getattr(getattr(batches, "sampler", None), "generator", None)
        self._generator = generator if isinstance(generator, torch.Generator) else None

    def _state(self) -> dict[str, Any]:
        """Of this rank. The sampler's generator as it was when the running epoch began, whose order a resumed run draws
        again; at an epoch's end as it is, for the next."""
        over = float(self._trainer.state.epoch or 0).is_integer()
        now = self._generator.get_state() if self._generator is not None else None
        state: dict[str, Any] = {
            "sampler": now if over else self.epoch_order,
            "stateful": {name: thing.state_dict() for name, thing in self._stateful.items()},
        }
        trainer = self._trainer
        if hasattr(trainer, "_buffered_inputs") and hasattr(trainer, "_step"):
            batches = getattr(trainer.args, "steps_per_generation", None) or trainer.args.gradient_accumulation_steps
            inside = trainer._step % (batches * getattr(trainer, "num_iterations", 1)) != 0
            state["generated"] = trainer._step
            state["buffer"] = trainer._buffered_inputs if inside else None
        return state


class SaveSchedule(StepHook):
    """Has the trainer save when somebody asks, when the run stops, and for rollback."""

    def __init__(self, checkpoints: TrainerCheckpoints) -> None:
        self._checkpoints = checkpoints
        self._asked = self._asked_own = self._saves_own = False

    def ask(self) -> None:
        """Somebody wants a checkpoint after this step."""
        self._asked = True

    def ask_own(self) -> None:
        """A checkpoint for rollback is due after this step."""
        self._asked_own = True

    def after_poll(self, control: TrainerControl, client: OvenClient) -> None:
        if client.restart:
            control.should_save = False  # what it goes back from is not to be gone on from
        elif self._asked or (client.stopping and not client.out_of_time):
            control.should_save = True
        elif self._asked_own and not control.should_save:
            control.should_save = self._saves_own = True
        self._asked = self._asked_own = False

    def saved(self, state: TrainerState, client: OvenClient, budget: StepBudget, rollback: Rollback | None) -> None:
        """The trainer has written a checkpoint: add its record. A collective."""
        own, self._saves_own = self._saves_own, False
        saved = self._checkpoints.saved(
            state.global_step,
            lambda: Record(
                **client.position(),
                run="",
                training="",
                step=state.global_step,
                trained=budget.total,
                fresh=False,
                own=own,
                world=1,
                actuators={spec.name: spec.value for spec in client.actuators.specs() if spec.kind != "action"},
                inexact=self._checkpoints.inexact(budget.thrown_away(state.global_step)),
            ),
        )
        disk = rollback.disk if isinstance(rollback, Resumable) else rollback
        if saved is not None and isinstance(disk, OnDisk):
            folder, began, ended = saved
            disk.saved(folder, client.tick, began, ended, own=own)


def _beside(rank: int) -> str:
    return f"oven-rank-{rank}.pt"


def _moved(tree: Any, device: torch.device) -> Any:
    if isinstance(tree, torch.Tensor):
        return tree.to(device)
    if isinstance(tree, dict):
        return {key: _moved(value, device) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(_moved(value, device) for value in tree)
    return tree
