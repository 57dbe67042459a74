"""A recorded GRPO run with decisions, receipts, outcomes and findings, for tests of exports."""

from __future__ import annotations

import random
from datetime import timedelta

from tests.support import runs
from tests.support.mesh_log import LR, NOON
from tests.support.recorded_runs import write_run

from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, LogMessage, Outcome, RunEnded, TallyLine
from oven_runs.home.run_folder import Home, RunFolder

DECISION_STEPS = 10
"""Steps between two decisions."""


def recorded_events(steps: int) -> list[Event]:
    """Return a run's events, a tenth of a second apart. Each tenth step halves the learning rate."""
    events: list[Event] = []

    def add(subject: str, body: LogMessage) -> None:
        seq = len(events) + 1
        events.append(Event.read(seq, f"oven.r.{subject}", body.wire(), NOON + timedelta(seconds=(seq - 1) / 10)))

    gauges, rate = runs.sorting(), 1.0
    add("run", runs.grpo())
    for step in range(1, steps + 1):
        add("observation", runs.seen(step, gauges(step, random.Random(step))))
        if step % DECISION_STEPS:
            continue
        decision = _decision(f"{len(events):012}-00", step, rate)
        add(f"decision.{decision.id}", decision)
        add("receipt", runs.receipt(step, LR, rate, rate / 2).model_copy(update={"decision_id": decision.id}))
        add(f"outcome.{decision.id}", _outcome(decision.id, step))
        state = "cleared" if step // DECISION_STEPS % 2 == 0 else "raised"
        alert = {"state": state, "symptom": "loss_spike", "metric": "loss", "value": 3.0, "expected": 1.0, "tick": step}
        add("alert.health", Alert.model_validate(alert))
        rate /= 2
    add("run", RunEnded(incarnation=1, n=10**6, reason="completed", tick=steps, step=steps, metrics={"loss": 0.5}))
    return events


def record_run(home: Home, name: str, steps: int) -> RunFolder:
    """Write the run to disk, as a run that is over."""
    return write_run(home, name, recorded_events(steps))


def _decision(id_: str, step: int, rate: float) -> Decision:
    line = TallyLine(agent="learning_rate", stance="propose", value=rate / 2, confidence=0.9, rationale="loss is noisy")
    return Decision(
        id=id_, ballot=id_, actuator=LR, verdict="adopted", value=rate / 2, before=rate, reason="loss is noisy",
        tally=(line,), tick=step, apply_at_tick=step + 1, expires_at_tick=step + 9, target="reward",
    )  # fmt: skip


def _outcome(id_: str, step: int) -> Outcome:
    return Outcome(
        decision_id=id_, actuator=LR, target="reward", scored=True, reason="the reward rose", from_tick=step, tick=step,
        before=0.1, after=0.2, samples=(3, 3), gain=0.1, forecast=0.1, noise=0.01,
    )  # fmt: skip
