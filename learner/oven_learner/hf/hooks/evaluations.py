"""Held-out evaluations of an attached trainer: by the user's function, and by the trainer itself."""

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
    """Calls the user's function at the start, every few steps, at the end, and whenever an agent asks for it."""

    def __init__(
        self,
        evaluate: Callable[[], Measured],
        every: int,
        last: dict[str, float],
    ) -> None:
        """`last` is shared by all evaluations and holds the newest metrics."""
        self._evaluate, self._every, self._last = evaluate, every, last
        self._requested = False
        self._first: dict[str, float] | None = None
        self.newest: dict[str, float] | None = None
        """The measurement at the end of the newest step; None if there was none."""

    def begin(self, ranks: Ranks) -> None:
        self._first = None

    def request(self, _: float | None) -> None:
        """Evaluate at the next step, even if it is not due."""
        self._requested = True

    def measure(self) -> dict[str, float]:
        """Measure now, for the run."""
        return self._note(means(self._evaluate()))

    def first(self) -> dict[str, float]:
        """Return the measurement before the first step."""
        return self._note(self._measured_first())

    def measures(self, name: str) -> bool:
        """Whether the function measures this metric."""
        return name in self._measured_first()

    def read(self, name: str) -> float:
        """Measure one metric now, outside the run's own measurements. Raises KeyError if it is not measured."""
        return means(self._evaluate())[name]

    def end_step(self, step: StepEnd) -> None:
        self.newest = None
        if step.last or self._requested or step.trained % self._every == 0:
            self._requested = False
            self.newest = self.measure()
            step.metrics.update(self.newest)

    def _measured_first(self) -> dict[str, float]:
        if self._first is None:
            with undisturbed(None):
                self._first = means(self._evaluate())
        return self._first

    def _note(self, measured: dict[str, float]) -> dict[str, float]:
        self._last.clear()
        self._last.update(measured)
        return measured


class TrainerEvaluation(StepHook):
    """Publishes the trainer's own evaluations with the next step."""

    def __init__(self, metrics: StepMetrics, last: dict[str, float]) -> None:
        """`last` is shared by all evaluations and holds the newest metrics."""
        self._metrics, self._last = metrics, last
        self._pending: dict[str, float] = {}
        self._requested = False

    def request(self, _: float | None) -> None:
        """Make the trainer evaluate after this step."""
        self._requested = True

    def begin(self, ranks: Ranks) -> None:
        self._pending = {}

    def announced_held_out(self) -> tuple[MetricSpec, ...]:
        """Return its metrics, those of the first evaluation set first."""
        return self._metrics.announced_held_out()

    def evaluated(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """Keep an evaluation of the trainer. Return its metrics under their published names."""
        measured = self._metrics.evaluated(metrics)
        self._pending |= measured
        self._last.update(self._pending)
        return measured

    def end_step(self, step: StepEnd) -> None:
        step.metrics.update(self._pending)
        self._pending = {}

    def after_poll(self, control: TrainerControl, client: OvenClient) -> None:
        if self._requested:
            self._requested, control.should_evaluate = False, True
