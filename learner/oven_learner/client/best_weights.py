"""The weights at a run's best held-out reading, and the knob that says which weights the run ends with."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from oven_core.errors import reason
from oven_core.protocol.actuator_names import BEST
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators, Applied
from oven_learner.ranks import Ranks

log = logging.getLogger("oven.learner")

T = TypeVar("T")

WITH_LAST, WITH_BEST = "last", "best"
"""Which weights a run ends with: the knob's choices."""


@dataclass(frozen=True, slots=True)
class Copy:
    """The weights of a step, and what an evaluation measured there."""

    tick: int
    step: int
    reading: float
    metrics: Mapping[str, float]
    state: Any


class BestWeights:
    """Of one training. A copy is taken at an evaluation that reads better than all before it; nothing is evaluated for
    its sake before the end. On every rank alike: each method is called on all of them at the same steps."""

    def __init__(
        self,
        metric: MetricSpec,
        *,
        take: Callable[[], Any],
        restore: Callable[[Any], object],
        read: Callable[[], float],
        ranks: Ranks | None = None,
    ) -> None:
        """`metric` has a direction. `take` returns a copy of the weights that training cannot touch, `restore` puts one
        back; `read` measures the metric over the held-out examples now and disturbs nothing."""
        self.metric = metric
        self.ends_with = WITH_LAST
        """What the knob says."""
        self._sign = -1 if metric.better == "down" else 1
        self._take, self._restore, self._read = take, restore, read
        self._ranks = ranks or Ranks()
        self._copy: Copy | None = None

    def announce(self, actuators: Actuators) -> None:
        """`run.best`."""
        actuators.choice(BEST, lambda: self.ends_with, self._set, (WITH_LAST, WITH_BEST), effect="at_end")

    def evaluated(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """An evaluation measured this of the weights as they are now. A reading that is not finite is never the
        best."""
        name = self.metric.name
        own = {name: metrics[name]} if name in metrics else {}
        reading = self._ranks.same(self._ranks.mean(own, (name,)).get(name, math.nan))
        if not math.isfinite(reading) or (self._copy is not None and not self._better(reading, self._copy.reading)):
            return
        try:
            state = self._on_all(self._take)
        except RuntimeError as error:  # out of memory, most likely
            log.warning("no copy of the best weights at step %d (%s); training continues", step, error)
            return
        self._copy = Copy(tick, step, reading, dict(metrics), state)

    def end(self, tick: int, step: int) -> tuple[Applied, Mapping[str, float]]:
        """The run is over and is to end with its best weights: they are put back where the held-out examples read
        better by them now. Returns what is said of it, and what was measured of the weights that were put back; nothing
        where the last ones stay."""
        best = self._copy
        if best is None:
            return self._said("noop", f"no evaluation has read {self.metric.name}: the last weights stay"), {}
        if (best.tick, best.step) == (tick, step):
            return self._said("noop", f"the last weights are the best: {self._at(best.reading)}"), {}
        try:
            present = self._on_all(self._take)
            now = self._measured()
        except RuntimeError as error:
            return self._said("rejected", f"the last weights stay, which could not be read: {error}"), {}
        then, failed = math.nan, ""
        try:
            self._on_all(lambda: self._restore(best.state))
            then = self._measured()
        except RuntimeError as error:
            failed = str(error)
        if self._better(then, now):
            why = f"the weights of step {best.step} are put back: {self._at(then)}, {now:.4g} at step {step}"
            return self._said("applied", why), best.metrics
        try:
            self._on_all(lambda: self._restore(present))
        except RuntimeError as error:
            why = f"the weights of step {best.step} were put back, and the last ones cannot be: {error}"
            return self._said("unknown", f"{why}; {failed}" if failed else why), {}
        if failed:
            return self._said("rejected", f"the last weights stay: those of step {best.step} failed: {failed}"), {}
        why = f"the last weights stay: {self._at(now)}, {then:.4g} at step {best.step}"
        return self._said("noop", why), {}

    def _set(self, value: str) -> None:
        self.ends_with = value

    def _said(self, status: Any, why: str) -> Applied:
        """The knob keeps its value; the outcome is in the words."""
        return Applied(status, self.ends_with, self.ends_with, why)

    def _at(self, reading: float) -> str:
        return f"{self.metric.name} {reading:.4g}"

    def _better(self, one: float, other: float) -> bool:
        """NaN and infinities are never better, and worse than any number."""
        if not math.isfinite(one):
            return False
        return not math.isfinite(other) or self._sign * one > self._sign * other

    def _measured(self) -> float:
        """The mean over the ranks."""
        name = self.metric.name
        own = self._on_all(self._read)
        return self._ranks.same(self._ranks.mean({name: own}, (name,))[name])

    def _on_all(self, do: Callable[[], T]) -> T:
        """This rank's result. Raises RuntimeError on every rank where it failed on one."""
        done: list[T] = []
        failed = ""
        try:
            done.append(do())
        except Exception as error:
            failed = reason(error)
        if why := next((said for said in self._ranks.each(failed) if said), ""):
            raise RuntimeError(why)
        return done[0]
