"""A training that no one interfered with, recorded once: every arm follows it until it decides something.

All that a step depends on is in a trainee's state, so continuing from a copy is the same, bit for bit, as having
trained up to there. The healthy beginning is shared by all families of a kind and seed, and what a fault does to a run
that is left alone by all arms.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from oven_bench.gym.episode_schedule import HORIZON, LATEST, PREFIX, end, max_steps
from oven_bench.gym.fault import Fault, Trainee
from oven_bench.gym.task_table import Kind
from oven_bench.gym.trainee_factory import Make
from oven_learner.rollback.snapshot_schedule import EVERY_TICKS

ONSETS = frozenset(range(PREFIX, LATEST + 1))


@dataclass
class Record:
    """Of a run's first gradient steps, none of them rolled back."""

    metrics: list[dict[str, float]] = field(default_factory=list)
    """Of each step."""
    states: dict[int, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    """Steps → (trainee.gradient_steps, trainee.state()) after so many."""
    losses: dict[int, float] = field(default_factory=dict)
    """Steps → trainee.quality() after so many, as far as it was asked for."""

    def put(self, trainee: Trainee, steps: int) -> int:
        """Take the trainee to the copy nearest before `steps`; returns how many steps that copy has behind it."""
        nearest = max(at for at in self.states if at <= steps)
        gradient_steps, state = self.states[nearest]
        trainee.restore(state)
        trainee.gradient_steps = gradient_steps
        return nearest

    def loss(self, trainee: Trainee, steps: int) -> float:
        """trainee.quality() after so many steps, of which there is a copy. The trainee is put there."""
        if steps not in self.losses:
            assert self.put(trainee, steps) == steps
            self.losses[steps] = trainee.quality()
        return self.losses[steps]


def twin_ends(horizon: int = HORIZON) -> frozenset[int]:
    """Where an episode can end: after so many gradient steps it is compared with its twin."""
    return frozenset({horizon, *range(PREFIX + horizon, max_steps(horizon) + 1)})


def healthy(make: Make, kind: Kind, seed: int, horizon: int = HORIZON) -> Record:
    """Without a fault, up to the last step that an episode can end with: what begins every episode, and its twin."""
    return _train(make(kind, seed), None, Record(), max_steps(horizon), ONSETS | twin_ends(horizon))


def untouched(make: Make, kind: Kind, seed: int, case: Fault, beginning: Record, horizon: int = HORIZON) -> Record:
    """With a fault and without an arm, from the healthy `beginning` to the episode's end."""
    trainee = make(kind, seed)
    shared = beginning.put(trainee, min(case.onset, LATEST))
    record = Record(beginning.metrics[:shared], {at: kept for at, kept in beginning.states.items() if at <= shared})
    last = end(case, horizon)
    _train(trainee, case, record, last, ())
    record.losses[last] = trainee.quality()
    return record


def _train(trainee: Trainee, case: Fault | None, record: Record, until: int, copies: Collection[int]) -> Record:
    """Copies are taken when a client would take its snapshots, and at `copies`."""
    steps = len(record.metrics)
    while True:
        if (steps % EVERY_TICKS == 0 or steps in copies) and steps not in record.states:
            record.states[steps] = (trainee.gradient_steps, trainee.state())
        if steps == until:
            return record
        record.metrics.append(trainee.train_step(case))
        steps += 1
