"""The copy of a training at its best held-out reading, and the actuator that goes back to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from statistics import fmean
from typing import Any

from oven_bench.gym.fault import Trainee
from oven_controller.mesh.state import held_out
from oven_learner.actuators import Actuators

RESTORE_BEST = "run.restore_best"


class BestCopy:
    """Of one episode. A copy is taken at each evaluation that is better than those before it."""

    def __init__(
        self,
        trainee: Trainee,
        actuators: Actuators,
        take: Callable[[], tuple[int, Any]],
        restore: Callable[[Any], None],
    ) -> None:
        """Adds its actuator. `take` and `restore` are as of the copies for rollbacks."""
        reading = held_out(trainee.metrics)
        assert reading is not None  # every trainee announces one
        self._metric, self._sign = reading.name, 1 if reading.better == "up" else -1
        self._trainee, self._take, self._restore = trainee, take, restore
        self._best = -math.inf
        self._copy: tuple[int, Any] | None = None
        actuators.action(RESTORE_BEST, self._go_back, effect="moves_weights", unit="step")

    def look(self, metrics: Mapping[str, float]) -> None:
        """After each step. A reading that is not finite is never the best."""
        reading = self._sign * metrics.get(self._metric, math.nan)
        if math.isfinite(reading) and reading > self._best:
            self._best, (_, self._copy) = reading, self._take()

    def _go_back(self, _: float | None) -> float:
        """Raises LookupError where no copy reads better, over the held-out examples, than the training does now."""
        if self._copy is None:
            raise LookupError("no evaluation has been made, so there is no best copy")
        now, (_, present) = self._read(), self._take()
        self._restore(self._copy)
        if not (best := self._read()) > now:
            self._restore(present)
            raise LookupError(
                f"the training reads {self._sign * now:.4g} now, and its best copy {self._sign * best:.4g}"
            )
        return float(self._copy[0])

    def _read(self) -> float:
        """Higher is better; −∞ where an example has no finite reading."""
        examples = self._trainee.examples()
        return self._sign * fmean(examples) if all(map(math.isfinite, examples)) else -math.inf
