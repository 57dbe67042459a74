"""Keeps the weights with the best held-out score. The knob `run.best` selects whether the run ends with them."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from oven_core.errors import reason
from oven_core.protocol.actuator_names import BEST
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators, Applied, Status
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")

T = TypeVar("T")

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
    """The best weights of one training run. The weights are copied whenever an evaluation beats all earlier ones.
    Additional evaluations run only at the end of the run. Every rank calls each method at the same steps."""

    def __init__(
        self,
        metric: MetricSpec,
        *,
        take: Callable[[], Any],
        restore: Callable[[Any], object],
        read: Callable[[], float],
        ranks: Ranks | None = None,
        score_name: str = "",
    ) -> None:
        """Args:
        metric: the metric by which to compare weights. Its better direction is known.
        take: copies the weights.
        restore: restores such a copy.
        read: measures the metric on the held-out examples without affecting the training.
        score_name: the name of the result of `read` in receipts. The default is the metric's name.
        """
        self.metric = metric
        self._score_name = score_name or metric.name
        self.final_weights = LAST_WEIGHTS
        """The knob's value."""
        self._sign = -1 if metric.better == "down" else 1
        self._take, self._restore, self._read = take, restore, read
        self._ranks = ranks or Ranks()
        self._copy: WeightsCopy | None = None

    def announce(self, actuators: Actuators) -> None:
        """Register `run.best`."""
        actuators.choice(BEST, lambda: self.final_weights, self._set, (LAST_WEIGHTS, BEST_WEIGHTS), effect="at_end")

    def record_evaluation(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation of the current weights. A score that is not finite is never the best."""
        name = self.metric.name
        local_score = {name: metrics[name]} if name in metrics else {}
        score = self._ranks.broadcast(self._ranks.mean(local_score, (name,)).get(name, math.nan))
        if not math.isfinite(score) or (self._copy is not None and not self._is_better(score, self._copy.score)):
            return
        try:
            state = self._on_all_ranks(self._take)
        except RuntimeError as error:  # out of memory, most likely
            log.warning("cannot copy the best weights at step %d (%s); training continues", step, error)
            return
        self._copy = WeightsCopy(tick, step, score, dict(metrics), state)

    def end(self, tick: int, step: int) -> tuple[Applied, Mapping[str, float]]:
        """Measure the best and the last weights again, and restore the best if they still score better. Return the
        outcome for the receipt, and the metrics of the restored weights, or no metrics if the last weights are kept."""
        best = self._copy
        if best is None:
            return self._outcome("noop", f"no evaluation has measured {self.metric.name}; kept the last weights"), {}
        if (best.tick, best.step) == (tick, step):
            return self._outcome("noop", f"the last weights are the best: {self.metric.name} {best.score:.4g}"), {}
        try:
            last_state = self._on_all_ranks(self._take)
            last_score = self._measure()
        except RuntimeError as error:
            return self._outcome("rejected", f"kept the last weights, because they cannot be measured: {error}"), {}
        best_score, failure = math.nan, ""
        try:
            self._on_all_ranks(lambda: self._restore(best.state))
            best_score = self._measure()
        except RuntimeError as error:
            failure = str(error)
        if self._is_better(best_score, last_score):
            scores = f"{self._score_name} {best_score:.4g}, {last_score:.4g} at step {step}"
            return self._outcome("applied", f"restored the weights of step {best.step}: {scores}"), best.metrics
        try:
            self._on_all_ranks(lambda: self._restore(last_state))
        except RuntimeError as error:
            message = f"restored the weights of step {best.step}, and cannot restore the last ones: {error}"
            return self._outcome("unknown", f"{message}; {failure}" if failure else message), {}
        if failure:
            message = f"kept the last weights, because those of step {best.step} failed: {failure}"
            return self._outcome("rejected", message), {}
        message = f"kept the last weights: {self._score_name} {last_score:.4g}, {best_score:.4g} at step {best.step}"
        return self._outcome("noop", message), {}

    def _set(self, value: str) -> None:
        self.final_weights = value

    def _outcome(self, status: Status, message: str) -> Applied:
        return Applied(status, self.final_weights, self.final_weights, message)

    def _is_better(self, score: float, other_score: float) -> bool:
        """Compare two scores. NaN and infinities are never better, and any finite number is better than them."""
        if not math.isfinite(score):
            return False
        return not math.isfinite(other_score) or self._sign * score > self._sign * other_score

    def _measure(self) -> float:
        """Measure the metric, and return the mean over the ranks."""
        name = self.metric.name
        local_score = self._on_all_ranks(self._read)
        return self._ranks.broadcast(self._ranks.mean({name: local_score}, (name,))[name])

    def _on_all_ranks(self, function: Callable[[], T]) -> T:
        """Call the function on all ranks, and return this rank's result. Raises RuntimeError on every rank if the call
        failed on one."""
        results: list[T] = []
        failure = ""
        try:
            results.append(function())
        except Exception as error:
            failure = reason(error)
        if first_failure := next(filter(None, self._ranks.all_gather(failure)), ""):
            raise RuntimeError(first_failure)
        return results[0]
