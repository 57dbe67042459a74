"""Held-out evaluations of an attached trainer: the user's function, and the trainer's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from transformers import TrainerControl

from oven_core.protocol.messages import MetricSpec
from oven_learner.client.client import OvenClient
from oven_learner.client.held_out_evaluation import Measured, means
from oven_learner.hf.hooks.step_hooks import StepEnd, StepHook
from oven_learner.hf.hooks.step_metrics import StepMetrics
from oven_learner.random_state import undisturbed
from oven_learner.ranks import Ranks


class UserEvaluation(StepHook):
    """Calls the user's function at the start, every few steps, at the end, and whenever an agent asks."""

    def __init__(
        self,
        evaluate: Callable[[], Measured],
        every: int,
        last: dict[str, float],
    ) -> None:
        """`last` holds what was measured last, by whichever evaluation."""
        self._evaluate, self._every, self._last = evaluate, every, last
        self._asked = False
        self._first: dict[str, float] | None = None
        self.newest: dict[str, float] | None = None
        """What it measured at the newest step's end; None: nothing."""

    def begin(self, ranks: Ranks) -> None:
        self._first = None

    def ask(self, _: float | None) -> None:
        """Evaluate with the next step, whenever it would have been due."""
        self._asked = True

    def measure(self) -> dict[str, float]:
        """What the function measures now."""
        return self._noted(means(self._evaluate()))

    def first(self) -> dict[str, float]:
        """What it measured before the first step."""
        return self._noted(self._measured_first())

    def measures(self, name: str) -> bool:
        """Whether that is one of its metrics."""
        return name in self._measured_first()

    def read(self, name: str) -> float:
        """One of its metrics now, beside the run's own measurements. Raises KeyError where it is not measured."""
        return means(self._evaluate())[name]

    def end_step(self, step: StepEnd) -> None:
        self.newest = None
        if step.last or self._asked or step.trained % self._every == 0:
            self._asked = False
            self.newest = self.measure()
            step.metrics.update(self.newest)

    def _measured_first(self) -> dict[str, float]:
        if self._first is None:
            with undisturbed(None):
                self._first = means(self._evaluate())
        return self._first

    def _noted(self, found: dict[str, float]) -> dict[str, float]:
        self._last.clear()
        self._last.update(found)
        return found


class TrainerEvaluation(StepHook):
    """Publishes what the trainer's own evaluation measures, with the next step."""

    def __init__(self, metrics: StepMetrics, last: dict[str, float]) -> None:
        """`last` holds what was measured last, by whichever evaluation."""
        self._metrics, self._last = metrics, last
        self._pending: dict[str, float] = {}
        self._asked = False

    def ask(self, _: float | None) -> None:
        """Have the trainer evaluate when the step is through."""
        self._asked = True

    def begin(self, ranks: Ranks) -> None:
        self._pending = {}

    def announced_held_out(self) -> tuple[MetricSpec, ...]:
        """What it measures, of the first evaluation set first."""
        return self._metrics.announced_held_out()

    def evaluated(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """The trainer has evaluated. Returns what it measured, as it is published."""
        measured = self._metrics.evaluated(metrics)
        self._pending |= measured
        self._last.update(self._pending)
        return measured

    def end_step(self, step: StepEnd) -> None:
        step.metrics.update(self._pending)
        self._pending = {}

    def after_poll(self, control: TrainerControl, client: OvenClient) -> None:
        if self._asked:
            self._asked, control.should_evaluate = False, True
