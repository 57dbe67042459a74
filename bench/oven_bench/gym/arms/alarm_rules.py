"""Arms that apply a remedy when a simple alarm goes off: a fixed remedy, or a random one."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from statistics import median

from oven_bench.fixed_rules import Alone, Change, Rule, RuleLink
from oven_core.protocol.messages import MetricSpec, Observation, RunStarted
from oven_learner.link.link_interface import Link

WINDOW, MIN_WINDOW = 30, 20
"""Steps behind the running median: at most, and at least before the median is used."""
MADS = 6.0
"""Median absolute deviations on the wrong side of the median that count as bad: about four standard deviations."""
BAD_STEPS, OF_STEPS = 2, 3
"""The alarm needs this many bad steps among so many."""
PATIENCE = 2
"""Evaluations in a row without improvement that trigger the alarm."""
QUIET = 20
"""Ticks without another alarm after one, so that a remedy can show its effect first."""
MAX_ALARMS = 3
"""Alarms per run. With more, a rule would only push the knobs to their bounds."""
BACK = 10
"""Ticks that a rollback goes back from the alarm. A spike shows within three steps of its cause, and the snapshot is at
most four steps older."""
SKIP = 40
"""Batches to skip after the rollback. PaLM (arXiv 2204.02311, §5.1) went back about 100 steps and skipped 200 to 500
batches, two to five times as many; here it is four times."""
RANDOM_DELAY = 10
"""Largest delay of a random remedy after the alarm, in ticks."""
RULE = "rule."
"""Prefix of the names of fixed rules' arms."""


@dataclass(frozen=True)
class RuleArm:
    """An arm that is a fixed rule. `make` builds a new rule for each episode from the arm's random generator."""

    name: str
    make: Callable[[Random], Rule]
    keeps_best: bool = False

    def link(self, run: str, rng: Random) -> Link:
        return RuleLink(self.make(rng))


class Alarm:
    """Watches the mean reward if there is one, else the loss, and the held-out metrics."""

    def __init__(self, run: RunStarted) -> None:
        names = {spec.name for spec in run.metrics}
        self._metric = "reward" if "reward" in names else "loss"
        self._sign = -1.0 if self._metric == "reward" else 1.0
        self._held_out = [spec for spec in run.metrics if spec.held_out and spec.better != "neither"]
        self._window: deque[float] = deque(maxlen=WINDOW)
        self._bad: deque[bool] = deque(maxlen=OF_STEPS)
        self._best: dict[str, float] = {}
        self._stale: dict[str, int] = {}
        self._quiet_until = 0
        self._alarms = 0

    def goes_off(self, observation: Observation) -> bool:
        """Whether the alarm goes off at this tick."""
        wrong = self._not_finite(observation) or self._spikes(observation) or self._is_stuck(observation)
        if not wrong or observation.tick < self._quiet_until or self._alarms == MAX_ALARMS:
            return False
        self._quiet_until = observation.tick + QUIET
        self._alarms += 1
        self._bad.clear()
        self._stale.clear()
        return True

    def _not_finite(self, observation: Observation) -> bool:
        return not all(math.isfinite(observation.metrics.get(name, 0.0)) for name in ("loss", "grad_norm"))

    def _spikes(self, observation: Observation) -> bool:
        value = self._sign * observation.metrics.get(self._metric, math.nan)
        if not math.isfinite(value):
            return False
        if len(self._window) >= MIN_WINDOW:
            middle = median(self._window)
            spread = median(abs(each - middle) for each in self._window)
            self._bad.append(value > middle + MADS * spread)
        self._window.append(value)
        return sum(self._bad) >= BAD_STEPS

    def _is_stuck(self, observation: Observation) -> bool:
        return any([self._evaluations_since_best(spec, observation) >= PATIENCE for spec in self._held_out])

    def _evaluations_since_best(self, spec: MetricSpec, observation: Observation) -> int:
        if spec.name in observation.metrics:
            value = observation.metrics[spec.name] * (1.0 if spec.better == "down" else -1.0)
            if value < self._best.get(spec.name, math.inf):
                self._best[spec.name], self._stale[spec.name] = value, 0
            else:
                self._stale[spec.name] = self._stale.get(spec.name, 0) + 1
        return self._stale.get(spec.name, 0)


class Knobs:
    """The scalars and actions that a run announced, with the values that a rule has set since."""

    def __init__(self, run: RunStarted) -> None:
        self._specs = {spec.name: spec for spec in run.actuators}
        self._values = {spec.name: spec.value for spec in run.actuators}

    def value(self, name: str) -> float | None:
        """A scalar's value, or None if the run has no such knob."""
        value = self._values.get(name)
        return float(value) if isinstance(value, int | float) else None

    def multiply(self, name: str, factor: float) -> list[Change]:
        value = self.value(name)
        return [] if value is None else self.set(name, value * factor)

    def set(self, name: str, value: float) -> list[Change]:
        """Set a knob within its bounds. No change if the run has no such knob or the value is the same."""
        if name not in self._specs:
            return []
        low, high = self._specs[name].low, self._specs[name].high
        value = min(max(value, value if low is None else low), value if high is None else high)
        if value == self._values[name]:
            return []
        self._values[name] = value
        return [(name, value)]

    def act(self, name: str, value: float) -> list[Change]:
        return [(name, value)] if name in self._specs else []


Remedy = Callable[[Knobs, int], list[Change]]
"""(knobs, tick of the alarm) → changes. None where the run has no such knob."""


def multiply(name: str, factor: float) -> Remedy:
    return lambda knobs, tick: knobs.multiply(name, factor)


def rollback(knobs: Knobs, tick: int) -> list[Change]:
    return knobs.act("run.rollback", max(0, tick - BACK))


def rollback_and_cut(knobs: Knobs, tick: int) -> list[Change]:
    return rollback(knobs, tick) + knobs.multiply("optimizer.lr_scale", 1 / 8)


def rollback_and_skip(knobs: Knobs, tick: int) -> list[Change]:
    return rollback(knobs, tick) + knobs.act("data.skip", SKIP)


REMEDIES: Mapping[str, Remedy] = {
    "cut_4": multiply("optimizer.lr_scale", 1 / 4),
    "cut_8": multiply("optimizer.lr_scale", 1 / 8),
    "raise_4": multiply("optimizer.lr_scale", 4),
    "rollback": rollback,
    "rollback_cut_8": rollback_and_cut,
    "rollback_skip": rollback_and_skip,
    "lower_weight_decay": multiply("optimizer.weight_decay", 1 / 8),
    "tighten_clip": multiply("grad.clip", 1 / 8),
    "raise_beta": multiply("grpo.beta", 4),
}


class RemedyOnAlarm:
    """A rule that applies one remedy at every alarm."""

    def __init__(self, remedy: Remedy) -> None:
        self._remedy = remedy

    def start(self, run: RunStarted) -> None:
        self._alarm, self._knobs = Alarm(run), Knobs(run)

    def look(self, observation: Observation) -> list[Change]:
        return self._remedy(self._knobs, observation.tick) if self._alarm.goes_off(observation) else []


class RandomRemedy:
    """A rule that applies a random remedy at a random moment after an alarm: the value of acting at all.

    A run's generator is the same whatever its fault. The metrics at the alarm are part of the seed, so that different
    faults of one seed get different remedies.
    """

    def __init__(self, rng: Random) -> None:
        self._seed = rng.random()
        self._planned: list[tuple[int, str]] = []

    def start(self, run: RunStarted) -> None:
        self._alarm, self._knobs = Alarm(run), Knobs(run)

    def look(self, observation: Observation) -> list[Change]:
        tick = observation.tick
        if self._alarm.goes_off(observation):
            rng = Random(repr((self._seed, tick, sorted(observation.metrics.items()))))
            self._planned.append((tick + rng.randint(0, RANDOM_DELAY), rng.choice(list(REMEDIES))))
        due = [remedy for planned, remedy in self._planned if planned == tick]
        return [change for remedy in due for change in REMEDIES[remedy](self._knobs, tick)]


def _fixed(remedy: Remedy, _: Random) -> Rule:
    return RemedyOnAlarm(remedy)


ARMS: Sequence[RuleArm] = (
    RuleArm("nothing", lambda _: Alone()),
    RuleArm("random", RandomRemedy),
    *(RuleArm(f"{RULE}{name}", partial(_fixed, remedy)) for name, remedy in REMEDIES.items()),
)
