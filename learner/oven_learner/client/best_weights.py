"""Keeps the weights with the best held-out score. The knob `run.best` decides whether the run ends with them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from oven_core.protocol.actuators import BEST
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators, ChangeResult, Status
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")

LAST_WEIGHTS, BEST_WEIGHTS = "last", "best"
"""The knob's choices."""


@dataclass(frozen=True, slots=True)
class WeightsCopy:
    """A copy of the weights at one step, with the evaluation results of that step."""

    tick: int
    step: int
    score: float
    metrics: Mapping[str, float]
    state: Any


class BestWeights:
    """The best weights of one training run. The weights are copied whenever one of the run's evaluations has the best
    score so far. Additional evaluations run only at the end. Every rank calls each method at the same steps."""

    def __init__(
        self,
        metric: MetricSpec,
        *,
        copy: Callable[[], Any],
        restore: Callable[[Any], object],
        measure: Callable[[], float],
        ranks: Ranks | None = None,
        score_name: str = "",
    ) -> None:
        """Args:
        metric: the metric by which to compare weights. Its `better` must be "up" or "down".
        copy: copies the weights.
        restore: restores such a copy.
        measure: measures the metric on the held-out examples without affecting the training.
        score_name: the name of the result of `measure` in receipts. The default is the metric's name.
        """
        self.metric = metric
        self._score_name = score_name or metric.name
        self.final_weights = LAST_WEIGHTS
        """The knob's value."""
        self._sign = -1 if metric.better == "down" else 1
        self._copy_weights, self._restore, self._measure = copy, restore, measure
        self._ranks = ranks or Ranks()
        self._best_copy: WeightsCopy | None = None

    def register(self, actuators: Actuators) -> None:
        """Register `run.best`."""
        choices = (LAST_WEIGHTS, BEST_WEIGHTS)
        write = partial(setattr, self, "final_weights")
        actuators.choice(BEST, lambda: self.final_weights, write, choices, effect="at_end")

    def record_evaluation(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation of the current weights. A score that is not finite is never the best."""
        name = self.metric.name
        local_score = {name: metrics[name]} if name in metrics else {}
        score = self._ranks.broadcast(self._ranks.mean(local_score, (name,)).get(name, math.nan))
        best_score = self._best_copy.score if self._best_copy is not None else math.nan
        if not self._is_better(score, best_score):
            return
        try:
            state = self._ranks.call_on_all(self._copy_weights)
        except RuntimeError as error:  # out of memory, most likely
            log.warning("cannot copy the best weights at step %d (%s); training continues", step, error)
            return
        self._best_copy = WeightsCopy(tick, step, score, dict(metrics), state)

    def choose_final_weights(self, tick: int, step: int) -> tuple[ChangeResult, Mapping[str, float]]:
        """Measure the best and the last weights again, and restore the best if they still score better. Return the
        result for the receipt, and the metrics of the restored weights, or none if the last weights are kept."""
        best = self._best_copy
        if best is None:
            return self._result("noop", f"no evaluation has measured {self.metric.name}; kept the last weights"), {}
        if (best.tick, best.step) == (tick, step):
            return self._result("noop", f"the last weights are the best: {self.metric.name} {best.score:.4g}"), {}
        try:
            last_state = self._ranks.call_on_all(self._copy_weights)
            last_score = self._measure_mean_score()
        except RuntimeError as error:
            return self._result("rejected", f"kept the last weights, because they cannot be measured: {error}"), {}
        best_score, failure = math.nan, ""
        try:
            self._ranks.call_on_all(lambda: self._restore(best.state))
            best_score = self._measure_mean_score()
        except RuntimeError as error:
            failure = str(error)
        if self._is_better(best_score, last_score):
            scores = f"{self._score_name} {best_score:.4g}, {last_score:.4g} at step {step}"
            return self._result("applied", f"restored the weights of step {best.step}: {scores}"), best.metrics
        try:
            self._ranks.call_on_all(lambda: self._restore(last_state))
        except RuntimeError as error:
            message = f"restored the weights of step {best.step}, and cannot restore the last ones: {error}"
            return self._result("unknown", f"{message}; {failure}" if failure else message), {}
        if failure:
            message = f"kept the last weights, because those of step {best.step} failed: {failure}"
            return self._result("rejected", message), {}
        message = f"kept the last weights: {self._score_name} {last_score:.4g}, {best_score:.4g} at step {best.step}"
        return self._result("noop", message), {}

    def _result(self, status: Status, message: str) -> ChangeResult:
        return ChangeResult(status, self.final_weights, self.final_weights, message)

    def _is_better(self, score: float, other_score: float) -> bool:
        """Whether `score` is better than `other_score`. A finite score is better than NaN and infinities."""
        if not math.isfinite(score):
            return False
        return not math.isfinite(other_score) or self._sign * score > self._sign * other_score

    def _measure_mean_score(self) -> float:
        """Measure the metric, and return the mean over the ranks."""
        name = self.metric.name
        local_score = self._ranks.call_on_all(self._measure)
        return self._ranks.broadcast(self._ranks.mean({name: local_score}, (name,))[name])
