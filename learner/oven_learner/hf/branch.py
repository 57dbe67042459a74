"""An attached trainer that can play the same steps again: its whole state, taken and put back bit for bit."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.checkpoint.stateful import Stateful
from transformers import DefaultFlowCallback, PrinterCallback, ProgressCallback, Trainer
from transformers.trainer_callback import CallbackHandler, ExportableState

from oven_core.protocol.messages import MetricSpec
from oven_learner.hf import trainer_snapshot
from oven_learner.hf.checkpoints import TrainerCheckpoints
from oven_learner.hf.epoch_extension import EpochExtension
from oven_learner.hf.evaluations import UserEvaluation
from oven_learner.hf.held_out_examples import HeldOutExamples, choose
from oven_learner.hf.knobs.mixture import MIXTURE
from oven_learner.hf.loop_place import LoopPlace, Place
from oven_learner.trials import random_state
from oven_learner.trials.copies import PlainValues
from oven_learner.trials.training_state import TrainingState

DATA = ("train_dataset", "eval_dataset")
COUNTED = ("global_step", "epoch", "num_input_tokens_seen", "total_flos")
"""Of the trainer's state what each step moves."""
SHOWING = ("transformers.integrations", "transformers.utils.notebook")
"""Modules of callbacks that report: what they have shown stays shown."""


@dataclass(frozen=True, slots=True)
class BranchState:
    """One copy."""

    place: Place
    training: dict[str, Any]
    trainer: dict[str, Any]
    """What the trainer itself keeps: TRL's buffered completions, their count, sums since the last log."""
    counted: dict[str, Any]
    objects: list[dict[str, Any]]
    """What callbacks and reward functions keep."""
    epochs: dict[str, Any]
    random: random_state.State


class TrainerBranch:
    """One trainer's, over all its trainings (oven_learner.trials.branchable.Branchable). Made before training begins;
    `begin` is called when optimizer and scheduler exist."""

    def __init__(
        self,
        trainer: Trainer,
        *,
        checkpoints: TrainerCheckpoints,
        epochs: EpochExtension,
        evaluation: UserEvaluation | None = None,
        stateful: Mapping[str, Stateful] | None = None,
        moved: Callable[[], object] = lambda: None,
    ) -> None:
        """`stateful`: the user's objects that a checkpoint brings back; but for a mixture, whose place is that of the
        data. `moved` is called when something else than a step has changed weights and sums."""
        self._trainer: Any = trainer
        self._loop = LoopPlace(trainer, checkpoints)
        self._epochs, self._evaluation = epochs, evaluation
        self._stateful = {name: thing for name, thing in (stateful or {}).items() if name != MIXTURE}
        self._moved = moved
        self._examples: HeldOutExamples | None = None

    def begin(self) -> None:
        """A training begins. Its optimizer and scheduler exist; nothing is read yet."""
        trainer = self._trainer
        self._loop.begin()
        self._examples = choose(trainer, self._evaluation)
        self._callbacks = [one for one in trainer.callback_handler.callbacks if _has_state(one)]
        held = [value for one in self._callbacks for value in vars(one).values()]
        beside = [getattr(trainer, "ref_model", None)] if getattr(trainer.args, "sync_ref_model", False) else []
        own = trainer.accelerator.unwrap_model(trainer.model)
        inside = {id(module) for module in own.modules()} | {id(getattr(trainer, "ref_model", None))}
        beside += [one for one in held if isinstance(one, torch.nn.Module) and id(one) not in inside]
        beside += trainer_snapshot.beside(trainer).values()
        self._training = TrainingState(
            own,
            trainer.optimizer,
            trainer.lr_scheduler,
            getattr(trainer.accelerator, "scaler", None),
            beside=[one for one in beside if one is not None],
            stateful=self._stateful,
        )
        self._values = PlainValues(trainer, leave=DATA)
        self._objects = [
            *(PlainValues(one) for one in self._callbacks),
            *(_counters(one) for one in getattr(trainer, "reward_funcs", ()) if _is_object(one)),
        ]

    @property
    def playing(self) -> bool:
        """Whether a branch plays: while it does, the trainer does not log, evaluate, save, or end at its last step.
        What was due of it in the branch that is kept is made up for after the first step that is none of a branch."""
        return self._loop.playing

    @playing.setter
    def playing(self, value: bool) -> None:
        self._loop.playing = value

    @property
    def recorded(self) -> int:
        """Reads of the loop that are kept to be given again."""
        return len(self._loop.tape)

    @property
    def reading(self) -> MetricSpec:
        assert self._examples is not None
        return self._examples.reading

    @property
    def room(self) -> int:
        """Steps until the training's last, which ends it."""
        state = self._trainer.state
        return max(0, int(state.max_steps) - int(state.global_step))

    def problem(self) -> str:
        return self._cannot_be_read() or self._loop.problem() or self.unreadable() or self._training.does_not_fit()

    def unreadable(self) -> str:
        """Why the held-out examples cannot be measured one by one; empty where they can."""
        return self._cannot_be_read() or (self._examples.problem() if self._examples else "")

    def _cannot_be_read(self) -> str:
        trainer = self._trainer
        if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
            return "FSDP or DeepSpeed shards the model, and its parts cannot be copied rank by rank: train it whole"
        if getattr(trainer, "use_vllm", False):
            return "vLLM samples with a random generator that cannot be put back: use_vllm=False"
        if self._examples is None:
            return (
                "nothing is held out example by example: give the trainer an eval_dataset, or an evaluate= that "
                "returns the value of each example in a list"
            )
        return ""

    def take(self) -> BranchState:
        state = BranchState(
            place=self._loop.here,
            training=self._training.take(),
            trainer=self._values.take(),
            counted={name: getattr(self._trainer.state, name) for name in COUNTED},
            objects=[one.take() for one in self._objects],
            epochs=PlainValues(self._epochs).take(),
            random=random_state.take(),
        )
        self._loop.tape.record()
        return state

    def restore(self, state: BranchState) -> None:
        self._loop.go_to(state.place)
        self._training.restore(state.training)
        self._values.restore(state.trainer)
        for name, value in state.counted.items():
            setattr(self._trainer.state, name, value)
        for values, then in zip(self._objects, state.objects, strict=True):
            values.restore(then)
        PlainValues(self._epochs).restore(state.epochs)
        random_state.restore(state.random)
        self._moved()

    def examples(self) -> Sequence[float]:
        assert self._examples is not None
        model = self._trainer.model
        kept = [(values, values.take()) for values in (self._values, *self._objects)]
        try:
            with random_state.undisturbed(model), torch.no_grad():
                model.eval()
                return self._examples.measure()
        finally:
            for values, then in kept:
                values.restore(then)

    def finish(self) -> None:
        self._loop.tape.finish()


def _is_object(reward: Any) -> bool:
    """Whether a reward function may keep something: not a plain function, nor a model."""
    return hasattr(reward, "__dict__") and not isinstance(reward, torch.nn.Module) and not inspect.isroutine(reward)


def _counters(reward: Any) -> PlainValues:
    """Of a committee its count of batches, which its draws depend on: what it publishes and pays stays."""
    return PlainValues(reward, containers=not type(reward).__module__.startswith("oven_learner."))


def _has_state(callback: Any) -> bool:
    """Whether what a callback keeps is part of the training, and not what it shows or publishes."""
    if isinstance(callback, ExportableState):
        return True
    shows = isinstance(callback, DefaultFlowCallback | PrinterCallback | ProgressCallback | CallbackHandler)
    module = type(callback).__module__
    return not (shows or module.startswith((*SHOWING, "oven_learner.")) or "Progress" in type(callback).__name__)
