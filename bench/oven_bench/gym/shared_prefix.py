"""Recordings of a run that no arm touched. Every arm follows one until it decides something.

All that a step depends on is in a trainee's state, so continuing from a copy equals training up to there, bit for bit.
All families of a task and seed share the healthy beginning, and all arms share the run that the fault leaves alone.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from oven_bench.gym.fault import Fault, Make, Trainee
from oven_bench.gym.task_table import Kind
from oven_learner.rollback.memory_snapshots import INTERVAL_TICKS

PREFIX, LATEST = 100, 130
"""First and last gradient step at which a fault may begin. Everything before is healthy."""
HORIZON = 100
"""Gradient steps from the onset to the end, including those that a rollback discards."""
MAX_STEPS = LATEST + HORIZON
"""The length that every run announces. It does not depend on the onset, which would otherwise give the onset away."""
COPIES = frozenset({HORIZON, *range(PREFIX, LATEST + 1), *range(PREFIX + HORIZON, MAX_STEPS + 1)})
"""Steps after which a healthy run is copied: possible onsets, and possible ends of an episode."""


def draw(family: type[Fault], seed: int) -> Fault:
    """The fault that a family draws for a seed: the same in every process and for every arm."""
    rng = Random(f"{family.name} {seed}")
    return family.draw(rng, rng.randint(PREFIX, LATEST))


def last_step(fault: Fault) -> int:
    """The number of gradient steps of an episode."""
    return fault.onset + HORIZON


@dataclass
class Record:
    """A run's first gradient steps, none of them rolled back."""

    metrics: list[dict[str, float]] = field(default_factory=list)
    """Metrics of each step."""
    states: dict[int, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    """Number of steps → (trainee.gradient_steps, trainee.state()) after them."""
    losses: dict[int, float] = field(default_factory=dict)
    """Number of steps → trainee.quality() after them, where it was measured."""

    def restore(self, trainee: Trainee, steps: int) -> int:
        """Restore the newest copy that is not after `steps`, and return the number of steps before that copy."""
        nearest = max(copied for copied in self.states if copied <= steps)
        gradient_steps, state = self.states[nearest]
        trainee.restore(state)
        trainee.gradient_steps = gradient_steps
        return nearest

    def loss(self, trainee: Trainee, steps: int) -> float:
        """trainee.quality() after a number of steps for which there is a copy. Moves the trainee there."""
        if steps not in self.losses:
            assert self.restore(trainee, steps) == steps
            self.losses[steps] = trainee.quality()
        return self.losses[steps]


def healthy(make: Make, kind: Kind, seed: int) -> Record:
    """A run without a fault up to the last possible end: the beginning of every episode, and its twin."""
    return _train(make(kind, seed), None, Record(), MAX_STEPS, COPIES)


def untouched(make: Make, kind: Kind, seed: int, fault: Fault, beginning: Record) -> Record:
    """A run with a fault and without an arm, from the healthy `beginning` to the episode's end."""
    trainee = make(kind, seed)
    shared = beginning.restore(trainee, min(fault.onset, LATEST))
    states = {steps: state for steps, state in beginning.states.items() if steps <= shared}
    record = Record(beginning.metrics[:shared], states)
    _train(trainee, fault, record, last_step(fault), ())
    record.losses[last_step(fault)] = trainee.quality()
    return record


def _train(trainee: Trainee, fault: Fault | None, record: Record, until: int, copies: Collection[int]) -> Record:
    """Train and record. Copies are taken when a client would take its snapshots, and after `copies` steps."""
    steps = len(record.metrics)
    while True:
        if (steps % INTERVAL_TICKS == 0 or steps in copies) and steps not in record.states:
            record.states[steps] = (trainee.gradient_steps, trainee.state())
        if steps == until:
            return record
        record.metrics.append(trainee.train_step(fault))
        steps += 1
