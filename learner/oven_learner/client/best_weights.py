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

WITH_LAST, WITH_BEST = "last", "best"
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
    """The best weights of one training.

    The weights are copied whenever an evaluation beats all earlier ones. No evaluation is added for this before the
    end of the run. Every rank calls each method at the same steps.
    """

    def __init__(
        self,
        metric: MetricSpec,
        *,
        take: Callable[[], Any],
        restore: Callable[[Any], object],
        read: Callable[[], float],
        ranks: Ranks | None = None,
        reading: str = "",
    ) -> None:
        """`metric` has a direction. `take` copies the weights, `restore` puts a copy back, and `read` measures the
        metric on the held-out examples without disturbing the training. `reading` names its result; the default is the
        metric's name."""
        self.metric = metric
        self._reading = reading or metric.name
        self.ends_with = WITH_LAST
        """The knob's value."""
        self._sign = -1 if metric.better == "down" else 1
        self._take, self._restore, self._read = take, restore, read
        self._ranks = ranks or Ranks()
        self._copy: WeightsCopy | None = None

    def announce(self, actuators: Actuators) -> None:
        """Register `run.best`."""
        actuators.choice(BEST, lambda: self.ends_with, self._set, (WITH_LAST, WITH_BEST), effect="at_end")

    def evaluated(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Record an evaluation of the current weights. A score that is not finite is never the best."""
        name = self.metric.name
        own = {name: metrics[name]} if name in metrics else {}
        score = self._ranks.same(self._ranks.mean(own, (name,)).get(name, math.nan))
        if not math.isfinite(score) or (self._copy is not None and not self._is_better(score, self._copy.score)):
            return
        try:
            state = self._on_all_ranks(self._take)
        except RuntimeError as error:  # out of memory, most likely
            log.warning("no copy of the best weights at step %d (%s); training continues", step, error)
            return
        self._copy = WeightsCopy(tick, step, score, dict(metrics), state)

    def end(self, tick: int, step: int) -> tuple[Applied, Mapping[str, float]]:
        """Restore the best weights if they score better than the last ones when both are measured now.

        Returns the outcome for the receipt, and the metrics of the restored weights; empty if the last ones stay.
        """
        best = self._copy
        if best is None:
            return self._outcome("noop", f"no evaluation has read {self.metric.name}: the last weights stay"), {}
        if (best.tick, best.step) == (tick, step):
            return self._outcome("noop", f"the last weights are the best: {self.metric.name} {best.score:.4g}"), {}
        try:
            last_state = self._on_all_ranks(self._take)
            last_score = self._measure()
        except RuntimeError as error:
            return self._outcome("rejected", f"the last weights stay, which could not be read: {error}"), {}
        best_score, failure = math.nan, ""
        try:
            self._on_all_ranks(lambda: self._restore(best.state))
            best_score = self._measure()
        except RuntimeError as error:
            failure = str(error)
        if self._is_better(best_score, last_score):
            scores = f"{self._described(best_score)}, {last_score:.4g} at step {step}"
            return self._outcome("applied", f"the weights of step {best.step} are put back: {scores}"), best.metrics
        try:
            self._on_all_ranks(lambda: self._restore(last_state))
        except RuntimeError as error:
            why = f"the weights of step {best.step} were put back, and the last ones cannot be: {error}"
            return self._outcome("unknown", f"{why}; {failure}" if failure else why), {}
        if failure:
            return self._outcome("rejected", f"the last weights stay: those of step {best.step} failed: {failure}"), {}
        why = f"the last weights stay: {self._described(last_score)}, {best_score:.4g} at step {best.step}"
        return self._outcome("noop", why), {}

    def _set(self, value: str) -> None:
        self.ends_with = value

    def _outcome(self, status: Status, why: str) -> Applied:
        return Applied(status, self.ends_with, self.ends_with, why)

    def _described(self, score: float) -> str:
        return f"{self._reading} {score:.4g}"

    def _is_better(self, score: float, than: float) -> bool:
        """NaN and infinities are never better, and any finite number is better than them."""
        if not math.isfinite(score):
            return False
        return not math.isfinite(than) or self._sign * score > self._sign * than

    def _measure(self) -> float:
        """Measure the metric now; the mean over the ranks."""
        name = self.metric.name
        own = self._on_all_ranks(self._read)
        return self._ranks.same(self._ranks.mean({name: own}, (name,))[name])

    def _on_all_ranks(self, do: Callable[[], T]) -> T:
        """Return this rank's result. Raises RuntimeError on every rank if `do` failed on one."""
        results: list[T] = []
        failure = ""
        try:
            results.append(do())
        except Exception as error:
            failure = reason(error)
        if why := next((message for message in self._ranks.each(failure) if message), ""):
            raise RuntimeError(why)
        return results[0]
