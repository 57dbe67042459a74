"""When a fixed rule thinks that something is wrong: the same alarm for all of them."""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from oven_core.protocol.messages import MetricSpec, Observation, RunStarted

WINDOW, LEAST = 30, 20
"""Steps that the running median is of: at most, and at least before it counts."""
MADS = 6.0
"""So many median absolute deviations on the wrong side of the median are bad: about four standard deviations."""
BAD, OF = 2, 3
"""So many of the latest steps have to be bad."""
PATIENCE = 2
"""A held-out metric that did not improve so many measurements in a row gives the alarm."""
QUIET = 20
"""Ticks after an alarm in which there is none: what was done has to show first."""
MOST = 3
"""Alarms in one run; a rule that continues would only push the knobs to their bounds."""


class Alarm:
    """Looks at the mean reward where there is one, else at the loss; and at what is held out."""

    def __init__(self, run: RunStarted) -> None:
        names = {spec.name for spec in run.metrics}
        self._watched = "reward" if "reward" in names else "loss"
        self._sign = -1.0 if self._watched == "reward" else 1.0
        self._held_out = [spec for spec in run.metrics if spec.held_out and spec.better != "neither"]
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._bad: deque[bool] = deque(maxlen=OF)
        self._best: dict[str, float] = {}
        self._stale: dict[str, int] = {}
        self._quiet_until = 0
        self._given = 0

    def look(self, observation: Observation) -> bool:
        """Whether it goes off at this tick."""
        wrong = self._broken(observation) or self._spiking(observation) or self._stuck(observation)
        if not wrong or observation.tick < self._quiet_until or self._given == MOST:
            return False
        self._quiet_until = observation.tick + QUIET
        self._given += 1
        self._bad.clear()
        self._stale.clear()
        return True

    def _broken(self, observation: Observation) -> bool:
        return not all(math.isfinite(observation.metrics.get(name, 0.0)) for name in ("loss", "grad_norm"))

    def _spiking(self, observation: Observation) -> bool:
        value = self._sign * observation.metrics.get(self._watched, math.nan)
        if not math.isfinite(value):
            return False
        if len(self._window) >= LEAST:
            middle = median(self._window)
            spread = median(abs(seen - middle) for seen in self._window)
            self._bad.append(value > middle + MADS * spread)
        self._window.append(value)
        return sum(self._bad) >= BAD

    def _stuck(self, observation: Observation) -> bool:
        return any([self._stale_for(spec, observation) >= PATIENCE for spec in self._held_out])

    def _stale_for(self, spec: MetricSpec, observation: Observation) -> int:
        if spec.name in observation.metrics:
            value = observation.metrics[spec.name] * (1.0 if spec.better == "down" else -1.0)
            if value < self._best.get(spec.name, math.inf):
                self._best[spec.name], self._stale[spec.name] = value, 0
            else:
                self._stale[spec.name] = self._stale.get(spec.name, 0) + 1
        return self._stale.get(spec.name, 0)
