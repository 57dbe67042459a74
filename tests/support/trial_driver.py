"""Plays a trial on a Branchable without the client's part: at which steps what happens is the test's."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from transformers import TrainerCallback

from oven_learner.trials import random_state


class StepEnd(Protocol):
    def step_ended(self, step: int, fingerprint: Callable[[], str]) -> None: ...


class Driver:
    """Called once per step, at its end, with the step's number. Each of `changes` makes an arm; at the end the control
    is kept, or the arm of that index, and then `done` is called."""

    def __init__(
        self,
        branch: Any,
        *,
        at: int,
        steps: int,
        changes: Sequence[Callable[[], object]],
        keep: int | None = None,
        lengths: Sequence[int] = (),
        done: Callable[[], object] = lambda: None,
    ) -> None:
        """`lengths`: steps of each arm, where they are not `steps`."""
        self._branch, self._at, self._steps, self._changes = branch, at, steps, list(changes)
        self._lengths = list(lengths) or [steps] * len(self._changes)
        self._keep, self._done = keep, done
        self.readings: list[list[float]] = []
        self.prints: list[str] = []
        self._arm = -1
        self._start: Any = None
        self._control: Any = None
        self._until = 0
        self.over = False

    def step_ended(self, step: int, fingerprint: Callable[[], str]) -> None:
        if self.over or (self._start is None and step != self._at):
            return
        branch = self._branch
        if self._start is None:
            branch.playing = True
            self._start, self._until = branch.take(), step + self._steps
            return
        if step < self._until:
            return
        self.prints.append(fingerprint())
        self.readings.append(list(branch.examples()))
        assert fingerprint() == self.prints[-1], "reading the examples moved something"
        if self._arm < 0:
            self._control = branch.take()
        last = self._arm + 1 == len(self._changes)
        if last and self._keep is None:
            branch.restore(self._control)
        if last:
            branch.finish()
            branch.playing = False
            self.over = True
            self._done()
            return
        self._arm += 1
        branch.restore(self._start)
        self._until = self._at + self._lengths[self._arm]
        self._changes[self._arm]()


class Change:
    """In the place of a driver: a change made directly, after a step."""

    def __init__(self, at: int, change: Callable[[], object]) -> None:
        self._at, self._change = at, change

    def step_ended(self, step: int, fingerprint: Callable[[], str]) -> None:
        if step == self._at:
            self._change()


class DrivenTrainer(TrainerCallback):
    """A driver as a callback, and what each step read and reached."""

    def __init__(self, trainer: Any, driver: StepEnd | None = None) -> None:
        self.trainer, self.driver = trainer, driver
        self.epochs: list[float] = []
        self.seen: dict[int, str] = {}
        """Step → the bits after it, as it was played last."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.seen[state.global_step] = fingerprint(self.trainer)
        if self.driver is not None:
            self.driver.step_ended(state.global_step, lambda: fingerprint(self.trainer))

    def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.epochs.append(state.epoch)


def fingerprint(trainer: Any) -> str:
    """Of weights, optimizer, scheduler, random generators and the trainer's own place."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    state = trainer.state
    kept = [getattr(trainer, "_step", None), state.global_step, state.epoch, getattr(trainer, "_tr_loss", None)]
    return digest(
        dict(model.state_dict()),
        trainer.optimizer.state_dict(),
        {key: value for key, value in trainer.lr_scheduler.state_dict().items() if key != "lr_lambdas"},
        random_state.take(),
        kept,
        getattr(trainer, "_buffered_inputs", None),
    )


def digest(*trees: Any) -> str:
    found = hashlib.sha256()
    for tree in trees:
        _add(found, tree)
    return found.hexdigest()[:16]


def _add(found: Any, tree: Any) -> None:
    if isinstance(tree, torch.Tensor):
        found.update(tree.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    elif hasattr(tree, "tobytes"):
        found.update(tree.tobytes())
    elif isinstance(tree, dict):
        for key, value in tree.items():
            found.update(repr(key).encode())
            _add(found, value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            _add(found, value)
    else:
        found.update(repr(tree).encode())
