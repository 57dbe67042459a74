"""One episode: a trainee under a fault, steered by an arm through the client that a real run has."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from oven_bench.gym.arm import Arm, KeepingBest, Reporting
from oven_bench.gym.episode_schedule import HORIZON, end, max_steps
from oven_bench.gym.fault import Fault, Trainee
from oven_bench.gym.intervention_counter import InterventionCounter
from oven_bench.gym.shared_prefix import Record
from oven_bench.gym.task_table import Kind
from oven_core.errors import OvenError
from oven_core.mesh.state import held_out
from oven_core.protocol.rules import Rules
from oven_learner.client.best_weights import BestWeights
from oven_learner.client.client import OvenClient
from oven_learner.rollback.in_memory import Snapshots

RULES = Rules(autonomy="auto")
"""The product's defaults, steered without a person."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Its outcome."""

    loss: float
    """trainee.quality() at the end."""
    steps: int
    """Gradient steps, those that were rolled back included; fewer than planned when the arm stopped the run."""
    interventions: int
    kept: Any = None


class Training:
    """A trainee and its case. As long as no one interferes its steps are read from a record, if there is one."""

    def __init__(self, trainee: Trainee, case: Fault, record: Record | None) -> None:
        self.steps = 0
        """Gradient steps computed so far, or read."""
        self.step = 0
        """The optimizer step, which a rollback takes back."""
        self._trainee, self._case = trainee, case
        self._record = record

    def train_step(self) -> dict[str, float]:
        self.steps, self.step = self.steps + 1, self.step + 1
        return self._record.metrics[self.steps - 1] if self._record else self._trainee.train_step(self._case)

    def interfere(self) -> None:
        """From here on it is trained: from the record's nearest copy before this step, so that one step at least is
        computed, and its settings, which no copy holds, are those that the fault made of them."""
        if self._record:
            record, self._record = self._record, None
            for _ in range(record.put(self._trainee, max(0, self.steps - 1)), self.steps):
                self._trainee.train_step(self._case)

    def take(self) -> tuple[int, tuple[int, Mapping[str, Any]]]:
        if self._record and self.steps not in self._record.states:
            self.interfere()
        state = self._record.states[self.steps][1] if self._record else self._trainee.state()
        return self.step, (self.step, state)

    def restore(self, kept: tuple[int, Mapping[str, Any]]) -> None:
        self.step, state = kept
        self._trainee.restore(state)

    def loss(self) -> float:
        if self._record and self.steps in self._record.losses:
            return self._record.losses[self.steps]
        self.interfere()
        return self._trainee.quality()


def run(trainee: Trainee, case: Fault, arm: Arm, record: Record | None = None, horizon: int = HORIZON) -> Ended:
    """`record` is of the same seed and case left alone (`untouched`), and changes nothing but the time it takes.

    An arm that holds or stops the run ends the episode there, and what stands then is what is scored. Raises what the
    arm raised.
    """
    name = run_id(trainee.kind, trainee.seed)
    training = Training(trainee, case, record)
    link = arm.link(name, Random(f"{name} {arm.name}"))
    actuators = trainee.actuators.copy()
    keeps = isinstance(arm, KeepingBest) and arm.keeps_best
    best = _best(training, trainee) if keeps else None
    tap = InterventionCounter(link, training.interfere, lambda: bool(client.held))
    client = OvenClient(
        tap,
        actuators,
        recipe=trainee.kind,
        metrics=trainee.metrics,
        max_steps=max_steps(horizon),
        charge_rollbacks=True,
        rules=RULES,
        snapshots=Snapshots(training.take, training.restore, credit=math.inf),
        best=best,
    )
    client.start()
    while training.steps < end(case, horizon) and not client.stopping:
        metrics = training.train_step()
        client.observe(training.step, metrics)
        if best is not None and best.metric.name in metrics:
            client.evaluated(metrics)
        client.poll()
        if tap.failure is not None:
            raise tap.failure
    client.finish()
    loss = training.loss()
    client.close("stopped" if client.stopping else "completed", detail=client.stopping)
    if tap.failure is not None:
        raise tap.failure
    if not math.isfinite(loss):
        raise OvenError(
            f"the quality of {trainee.kind} {trainee.seed} is {loss}; a broken run has its kind's largest loss"
        )
    return Ended(loss, training.steps, tap.interventions, link.report() if isinstance(link, Reporting) else None)


def _best(training: Training, trainee: Trainee) -> BestWeights:
    """Copies and readings cost no steps, as for users."""
    metric = held_out(trainee.metrics)
    assert metric is not None  # every trainee announces one

    def read() -> float:
        training.interfere()
        return fmean(trainee.examples())

    return BestWeights(metric, take=lambda: training.take()[1], restore=training.restore, read=read)


def run_id(kind: Kind, seed: int) -> str:
    """What an arm knows its run by. The family is not part of it."""
    return f"gym-{hashlib.blake2b(f'{kind} {seed}'.encode(), digest_size=6).hexdigest()}"
