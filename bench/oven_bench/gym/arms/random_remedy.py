"""A remedy drawn by chance, at a moment drawn by chance after an alarm: what acting as such is worth."""

from __future__ import annotations

from random import Random

from oven_bench.fixed_rules import Change
from oven_bench.gym.arm import RuleArm
from oven_bench.gym.arms.alarm import Alarm
from oven_bench.gym.arms.remedies import REMEDIES, Knobs
from oven_core.protocol.messages import Observation, RunStarted

LATEST = 10
"""Ticks after the alarm."""


class RandomRemedy:
    """The rule. A run's own generator is the same whatever its fault, so that it tells nothing of it; what was observed
    at the alarm is drawn with, or all faults of a seed would meet the same draw."""

    def __init__(self, rng: Random) -> None:
        self._seed = rng.random()
        self._waiting: list[tuple[int, str]] = []

    def start(self, run: RunStarted) -> None:
        self._alarm, self._knobs = Alarm(run), Knobs(run)

    def look(self, observation: Observation) -> list[Change]:
        tick = observation.tick
        if self._alarm.look(observation):
            rng = Random(repr((self._seed, tick, sorted(observation.metrics.items()))))
            self._waiting.append((tick + rng.randint(0, LATEST), rng.choice(list(REMEDIES))))
        due = [remedy for at, remedy in self._waiting if at == tick]
        return [change for remedy in due for change in REMEDIES[remedy](self._knobs, tick)]


RANDOM = RuleArm("random", RandomRemedy)
