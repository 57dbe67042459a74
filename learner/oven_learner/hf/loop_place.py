"""Where a trainer's own loop is in its epochs, what it reads, and the way back to an earlier place.

transformers 5.23 keeps the place in local variables of `_run_epoch` (trainer.py:1819), which no callback can set. It
has a way to begin in the middle of an epoch, for checkpoints: that is how it is sent back here. `get_batch_samples`,
called once per optimizer step, is where its batches are recorded and given again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from oven_learner.hf.checkpoints import TrainerCheckpoints
from oven_learner.trials.tape import Tape

WRAPPED = ("_run_epoch", "get_batch_samples", "_load_rng_state", "_maybe_log_save_evaluate")
ARGUMENTS = (
    "epoch", "train_dataloader", "steps_in_epoch", "resume_from_checkpoint", "epochs_trained",
    "steps_trained_in_current_epoch",
)  # fmt: skip
DUE = ("should_log", "should_evaluate", "should_save")
BACK = "a place in memory"
"""Stands for a checkpoint's path."""


@dataclass(frozen=True, slots=True)
class Place:
    """The end of an optimizer step."""

    epoch: int
    batches: int
    """Of this epoch, behind it."""
    read: int
    """The tape's position."""
    due: frozenset[str]
    """What the trainer would have done by now if no branch had played."""
    order: torch.Tensor | None
    """What a checkpoint says of the epoch's order (TrainerCheckpoints.epoch_order)."""


class _Sent(BaseException):
    """The loop continues at another place. Nothing but `_run_epoch` is passed through."""


class LoopPlace:
    """One trainer's, over all its trainings."""

    def __init__(self, trainer: Any, checkpoints: TrainerCheckpoints) -> None:
        self._trainer, self._checkpoints = trainer, checkpoints
        self._wrapped = False
        self._forget()

    def _forget(self) -> None:
        self.tape = Tape()
        self.playing = False
        """A branch plays: the trainer does not log, evaluate, save, or end at its last step. What was due of it is
        made up for after the first step that is none of a branch."""
        self._epoch: int | None = None
        self._batches = 0
        self._own: tuple[int, int] = (0, 0)
        """Epoch and batches by the loop's own count: others, after it was sent and before it gets there."""
        self._at_end = False
        self._due: set[str] = set()
        self._native = True
        self._source: Iterator[Any] | None = None
        self._sent_to: Place | None = None
        self._moved = False

    def problem(self) -> str:
        """Why this trainer's loop cannot be sent back, if so."""
        trainer = self._trainer
        lacking = [name for name in WRAPPED if not hasattr(trainer, name)]
        if not lacking:
            known = inspect.signature(getattr(trainer, WRAPPED[0])).parameters
            lacking = [name for name in ARGUMENTS if name not in known]
        if lacking:
            return f"this version of transformers has another training loop (no {', '.join(lacking)}): install 5.23"
        if trainer.args.ignore_data_skip:
            return "ignore_data_skip keeps the trainer from beginning inside an epoch: leave it out"
        return ""

    def begin(self) -> None:
        """Training begins; knobs that read the data have wrapped what they need."""
        self._forget()
        if not self._wrapped and not self.problem():
            self._wrapped = True
            for name, wrapper in zip(WRAPPED, (self._runs, self._reads, self._loads, self._looks), strict=True):
                setattr(self._trainer, name, wrapper(getattr(self._trainer, name)))

    @property
    def here(self) -> Place:
        assert self._epoch is not None
        due = frozenset(self._due | set(self._asked()))  # callbacks before this one have spoken
        return Place(self._epoch, self._batches, self.tape.position, due, self._checkpoints.epoch_order)

    def go_to(self, place: Place) -> None:
        """Called at a step's end; the loop is there when that is over. Raises LookupError where its reads are not
        recorded any more."""
        self.tape.go_to(place.read)
        for name in self._asked():  # of the step that is left
            setattr(self._trainer.control, name, False)
        self._epoch, self._batches, self._due = place.epoch, place.batches, set(place.due)
        self._checkpoints.epoch_order = place.order
        self._moved = True
        self._sent_to = place if (place.epoch, place.batches) != self._own else None

    def _runs(self, run_epoch: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(run_epoch)

        @wraps(run_epoch)
        def run(*args: Any, **kwargs: Any) -> None:
            bound = signature.bind(*args, **kwargs)
            self._enter(bound.arguments)
            while True:
                self._own = (bound.arguments["epoch"], self._batches)
                self._at_end = self._batches >= bound.arguments["steps_in_epoch"]
                try:
                    return run_epoch(*bound.args, **bound.kwargs)
                except _Sent:
                    place, self._sent_to = self._sent_to, None
                    assert place is not None
                    self._native = False
                    bound.arguments |= {
                        "epoch": place.epoch,
                        "epochs_trained": place.epoch,
                        "resume_from_checkpoint": BACK,
                        "steps_trained_in_current_epoch": place.batches,
                        "train_dataloader": _Nothing(),
                    }

        return run

    def _enter(self, given: dict[str, Any]) -> None:
        """An epoch begins: the one after the last, which the loop may have been sent to."""
        if self._epoch is None:
            resumed = given["resume_from_checkpoint"] is not None and given["epoch"] == given["epochs_trained"]
            self._epoch = given["epoch"]
            self._batches = given["steps_trained_in_current_epoch"] if resumed else 0
        else:
            self._epoch, self._batches = self._epoch + 1, 0
            given["epoch"] = self._epoch
        self._native = self.tape.at_end and not self.tape.recording
        if not self._native:
            given["train_dataloader"] = _Opening(given["train_dataloader"], self)

    def open(self, loader: Any) -> None:
        """An epoch's order is drawn, or was."""

        def opened() -> torch.Tensor | None:
            self._source = iter(loader)
            return self._checkpoints.epoch_order

        self._checkpoints.epoch_order = self.tape.read(opened)

    def _reads(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fetch)
        def read(iterator: Any, *rest: Any, **more: Any) -> Any:
            """The batches of one optimizer step."""
            if self._at_end:
                return [], None
            if self._native:
                self._source = iterator
            samples = self.tape.read(lambda: fetch(self._source, *rest, **more))
            self._batches += len(samples[0])
            self._own = (self._own[0], self._batches)
            return samples

        return read

    def _loads(self, load: Callable[..., None]) -> Callable[..., None]:
        @wraps(load)
        def loaded(checkpoint: Any) -> None:
            if checkpoint != BACK:  # who restores has put the generators back
                load(checkpoint)

        return loaded

    def _looks(self, look: Callable[..., None]) -> Callable[..., None]:
        @wraps(look)
        def looked(*args: Any, **kwargs: Any) -> None:
            """After each step and each epoch, when callbacks have said what is due."""
            control = self._trainer.control
            last = self._trainer.state.global_step >= self._trainer.state.max_steps
            moved, self._moved = self._moved and not last, False  # gradient norm and rate are those of another branch
            if self.playing or moved:
                for name in self._asked():
                    self._due.add(name)
                    setattr(control, name, False)
            else:
                for name in self._due:
                    setattr(control, name, True)
                self._due.clear()
                look(*args, **kwargs)
            if control.should_training_stop or control.should_epoch_stop:
                self._sent_to = None
            if self._sent_to is not None:
                raise _Sent

        return looked

    def _asked(self) -> list[str]:
        """What the trainer is to do after this step, as far as a branch puts it off."""
        trainer = self._trainer
        last = trainer.state.global_step >= trainer.state.max_steps
        names = (*DUE, *(("should_training_stop",) if last else ()))
        return [name for name in names if getattr(trainer.control, name)]


class _Opening:
    """An epoch's loader while its opening is recorded or repeated; its batches come by `get_batch_samples`."""

    def __init__(self, loader: Any, place: LoopPlace) -> None:
        self._loader, self._place = loader, place

    @property
    def batch_sampler(self) -> Any:
        return getattr(self._loader, "batch_sampler", None) if self._place.tape.at_end else None

    def set_epoch(self, epoch: int) -> None:
        if self._place.tape.at_end and hasattr(self._loader, "set_epoch"):
            self._loader.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        self._place.open(self._loader)
        return iter(())


class _Nothing:
    """What the trainer skips the first batches of when it is sent back: a loader of nothing, that draws nothing."""

    def __init__(self) -> None:
        self.dataset: tuple[Any, ...] = ()
        self.sampler = None
        self.batch_sampler: tuple[Any, ...] = ()
        self.generator = torch.Generator()
        self.num_workers, self.prefetch_factor = 0, None
