"""One episode: a trainee under a fault, steered by an arm through the client that a real run has."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from oven_bench.gym.arms import Arm
from oven_bench.gym.arms.controller import LoopLink
from oven_bench.gym.fault import Fault, Trainee
from oven_bench.gym.shared_prefix import MAX_STEPS, Record, last_step
from oven_bench.gym.task_table import Kind
from oven_core.errors import OvenError
from oven_core.mesh.state import main_held_out_metric
from oven_core.protocol.messages import Decision, LogMessage, Receipt, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_core.protocol.rules import Rules
from oven_learner.client.best_weights import BestWeights
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.link_interface import Link, ObservationFields, UnbuiltMessage, build_message
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.sample_queue import SampleConverter
from oven_learner.rollback.memory_snapshots import Snapshots

RULES = Rules(autonomy="auto")
"""The product's defaults, without a person to ask for approval."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an episode ended."""

    loss: float
    """trainee.quality() at the end."""
    steps: int
    """Gradient steps, including those that were rolled back. Fewer than planned if the arm stopped the run."""
    interventions: int
    outcomes: Sequence[Any] = ()
    """The mesh's outcomes as plain values, with the probability that each voter gave. Empty for other arms."""


class Training:
    """A trainee and its fault. Until the arm intervenes, the steps are read from a record if there is one."""

    def __init__(self, trainee: Trainee, fault: Fault, record: Record | None) -> None:
        self.steps = 0
        """Gradient steps so far, computed or read."""
        self.step = 0
        """The optimizer step, which a rollback moves back."""
        self._trainee, self._fault = trainee, fault
        self._record = record

    def train_step(self) -> dict[str, float]:
        self.steps, self.step = self.steps + 1, self.step + 1
        return self._record.metrics[self.steps - 1] if self._record else self._trainee.train_step(self._fault)

    def leave_record(self) -> None:
        """Train from here on, starting from the record's newest copy before this step. At least one step is computed,
        because the fault writes the settings in it and no copy holds them."""
        if self._record:
            record, self._record = self._record, None
            for _ in range(record.restore(self._trainee, max(0, self.steps - 1)), self.steps):
                self._trainee.train_step(self._fault)

    def snapshot(self) -> tuple[int, tuple[int, Mapping[str, Any]]]:
        """The step, and what `restore` takes."""
        if self._record and self.steps not in self._record.states:
            self.leave_record()
        state = self._record.states[self.steps][1] if self._record else self._trainee.state()
        return self.step, (self.step, state)

    def restore(self, snapshot: tuple[int, Mapping[str, Any]]) -> None:
        self.step, state = snapshot
        self._trainee.restore(state)

    def loss(self) -> float:
        if self._record and self.steps in self._record.losses:
            return self._record.losses[self.steps]
        self.leave_record()
        return self._trainee.quality()

    def best_weights(self) -> BestWeights:
        """The best held-out weights. Copies and evaluations cost no steps, as for users."""
        metric = main_held_out_metric(self._trainee.metrics)
        assert metric is not None  # every trainee announces one

        def read() -> float:
            self.leave_record()
            return fmean(self._trainee.examples())

        return BestWeights(metric, copy=lambda: self.snapshot()[1], restore=self.restore, measure=read)


class InterventionCounter:
    """A link that counts an arm's interventions and remembers the first error that the arm raised.

    The client of a real run trains on after such an error. In the gym that would look like an arm that chose to wait.
    """

    def __init__(self, link: Link, before_change: Callable[[], object], is_held: Callable[[], bool]) -> None:
        """`before_change` is called before the client receives a decision that acts before the end of the run."""
        self.interventions = 0
        """Changes that receipts report as applied, and 1 more if the run ended with its best weights."""
        self.failure: Exception | None = None
        self._stopped = False
        self._harmless: frozenset[str] = frozenset()  # actuators that do not intervene, such as run.evaluate
        self._at_end: frozenset[str] = frozenset()  # actuators that act at the end of the run only
        self._link, self._before_change, self._is_held = link, before_change, is_held

    @property
    def dropped_count(self) -> int:
        return self._link.dropped_count

    def open(self) -> ResumeState:
        return self._link.open()

    def begin(self) -> None:
        self._link.begin()

    def send(self, unbuilt: UnbuiltMessage) -> None:
        message = build_message(unbuilt)
        if isinstance(message, RunStarted):
            self._harmless = frozenset(spec.name for spec in message.actuators if not spec.intervenes)
            self._at_end = frozenset(spec.name for spec in message.actuators if spec.effect == "at_end")
        if isinstance(message, Receipt) and message.status == "applied":
            ended_with_best = message.actuator in self._at_end and not message.decision_id
            changed = bool(message.decision_id) and message.actuator not in self._harmless
            self.interventions += ended_with_best or changed
        try:
            self._link.send(lambda: message)
        except Exception as error:
            self.failure = self.failure or error
            raise

    def observe(self, fields: ObservationFields) -> None:
        self.send(fields)

    def show(self, convert: SampleConverter) -> None:
        self._link.show(convert)

    def receive(self) -> LogMessage | None:
        if self._is_held() and not self._stopped:  # nobody is there to resume the run
            self._stopped = True
            return OperatorCommand(id="over", action="stop", reason="the run is held, and the episode ends")
        try:
            message = self._link.receive()
        except Exception as error:
            self.failure = self.failure or error
            raise
        if isinstance(message, Decision) and message.verdict == "adopted" and message.actuator not in self._at_end:
            self._before_change()
        return message

    def close(self, timeout_s: float) -> bool:
        return self._link.close(timeout_s)


def play(trainee: Trainee, fault: Fault, arm: Arm, record: Record | None = None) -> Outcome:
    """Play one episode. The record of the same run without an arm changes nothing but the time it takes.

    If the arm holds or stops the run, the episode ends there and is scored there. Raises what the arm raised.
    """
    run = run_id(trainee.kind, trainee.seed)
    training = Training(trainee, fault, record)
    best = training.best_weights() if arm.keeps_best else None
    link = arm.link(run, Random(f"{run} {arm.name}"))
    counter = InterventionCounter(link, training.leave_record, lambda: bool(client.hold_reason))
    client = OvenClient(
        counter,
        trainee.actuators.copy(),
        recipe=trainee.kind,
        metrics=trainee.metrics,
        max_steps=MAX_STEPS,
        charge_rollbacks=True,
        rules=RULES,
        snapshots=Snapshots(training.snapshot, training.restore, credit=math.inf),
        best=best,
    )
    client.start()
    while training.steps < last_step(fault) and not client.stopping:
        metrics = training.train_step()
        client.observe(training.step, metrics)
        if best is not None and best.metric.name in metrics:
            client.record_evaluation(metrics)
        client.poll()
        if counter.failure is not None:
            raise counter.failure
    client.finish()
    loss = training.loss()
    client.close("stopped" if client.stopping else "completed", detail=client.stop_reason)
    if counter.failure is not None:
        raise counter.failure
    if not math.isfinite(loss):
        raise OvenError(
            f"the quality of {trainee.kind}, seed {trainee.seed}, is {loss}: a trainee has to report a broken run as "
            "its task's largest loss"
        )
    outcomes = link.outcomes() if isinstance(link, LoopLink) else ()
    return Outcome(loss, training.steps, counter.interventions, outcomes)


def run_id(kind: Kind, seed: int) -> str:
    """The run's name. It does not depend on the fault's family."""
    return f"gym-{hashlib.blake2b(f'{kind} {seed}'.encode(), digest_size=6).hexdigest()}"
