"""An attached trainer as trials take it back: the trainer's own state, and what the attachment keeps beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from oven_core.protocol.messages import MetricSpec
from oven_learner.hf.branch import TrainerBranch
from oven_learner.hf.save_schedule import StepBudget
from oven_learner.hf.step_hooks import StepHook


class AttachedBranch:
    """`Branchable` (oven_learner.trials.branchable) for one training. While a branch plays, the trainer neither logs,
    evaluates, saves nor ends; the gradient steps of a branch that is not kept count for nothing that goes by steps."""

    by_steps = False
    lagging = frozenset({"data.mixture", "data.skip"})

    def __init__(
        self, trainer: TrainerBranch, hooks: Sequence[StepHook], budget: Callable[[], StepBudget], *, by_clock: bool
    ) -> None:
        """`by_clock`: whether a slow evaluation rules out further trials."""
        self.by_clock = by_clock
        self._trainer, self._hooks, self._budget = trainer, hooks, budget

    @property
    def reading(self) -> MetricSpec:
        """The held-out metric by which arms are compared."""
        return self._trainer.reading

    def problem(self) -> str:
        """Why no trial can be made of this trainer; empty where one can."""
        return self._trainer.problem()

    def take(self) -> Any:
        """A copy of all that the next steps depend on; from now on a branch plays."""
        self._trainer.playing = True
        return self._trainer.take(), [hook.branch_state() for hook in self._hooks], self._budget().trained

    def restore(self, state: Any) -> None:
        """The state of then."""
        trainer, hooks, self._budget().trained = state
        self._trainer.restore(trainer)
        for hook, kept in zip(self._hooks, hooks, strict=True):
            hook.restore_branch(kept)

    def examples(self) -> Sequence[float]:
        """The reading of each held-out example."""
        return self._trainer.examples()

    def finish(self) -> None:
        """The trial is over, and the trainer does again what it does at its steps."""
        self._trainer.finish()
        self._trainer.playing = False
