"""The learner's client against a link of its own: order, receipts, expiry, hold, resume, lockstep."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest

from oven_controller.errors import BusError, UnknownNameError
from oven_controller.messages import (
    Body,
    Decision,
    LearnerMessage,
    Observation,
    OperatorCommand,
    Receipt,
    RunEnded,
    RunStarted,
    StepClosed,
    Value,
)
from oven_controller.rules import Rules
from oven_learner.actuators import Actuators
from oven_learner.client import OvenClient
from oven_learner.link import Past
from oven_learner.snapshots import Snapshots


class Line:
    """A link that keeps what was sent, and hands over what the test puts in."""

    dropped = 0

    def __init__(self, past: Past | None = None) -> None:
        self.past = past or Past()
        self.sent: list[LearnerMessage] = []
        self.coming: deque[Body] = deque()

    def open(self) -> Past:
        return self.past

    def begin(self) -> None:
        pass

    def send(self, make: Callable[[], LearnerMessage], *, droppable: bool = False) -> None:
        self.sent.append(make())

    def receive(self) -> Body | None:
        return self.coming.popleft() if self.coming else None

    def close(self, timeout_s: float) -> bool:
        return True

    def receipts(self) -> list[Receipt]:
        return [message for message in self.sent if isinstance(message, Receipt)]


class Model:
    def __init__(self) -> None:
        self.rate = 1.0
        self.weights = 0
        self.step = 0


def decide(
    value: Value,
    *,
    actuator: str = "rate",
    number: int = 1,
    apply_at: int = 1,
    expires: int = 50,
    verdict: str = "adopted",
    snapshot_first: bool = False,
) -> Decision:
    return Decision.model_validate(
        {"id": f"{number:012d}-00", "ballot": "b", "actuator": actuator, "verdict": verdict, "value": value,
         "reason": "", "tally": (), "tick": apply_at - 1, "apply_at_tick": apply_at, "expires_at_tick": expires,
         "snapshot_first": snapshot_first}
    )  # fmt: skip


def make(line: Line, *, lockstep: bool = False, start: bool = True) -> tuple[OvenClient, Model]:
    model = Model()
    actuators = Actuators()
    actuators.scalar("rate", lambda: model.rate, lambda v: setattr(model, "rate", v), low=0.01, high=100, scale="log")

    def restore(kept: tuple[int, int]) -> None:
        model.step, model.weights = kept

    snapshots = Snapshots(lambda: (model.step, (model.step, model.weights)), restore)
    client = OvenClient(line, actuators, max_steps=100, lockstep=lockstep, snapshots=snapshots)
    if start:
        client.start()
    return client, model


def test_a_run_is_announced_observed_and_ended_in_order() -> None:
    line = Line()
    client, _ = make(line)
    client.observe(1, {"loss": 2.0})
    client.poll()
    client.close("completed", metrics={"eval/accuracy": 0.9})
    kinds = [type(message) for message in line.sent]
    assert kinds == [RunStarted, Observation, RunEnded]
    assert [message.n for message in line.sent] == [1, 2, 3]
    started = line.sent[0]
    assert isinstance(started, RunStarted)
    assert {spec.name for spec in started.actuators} == {
        "rate", "run.hold", "run.stop", "run.checkpoint", "run.rollback"
    }  # fmt: skip


def test_progress_is_against_the_horizon() -> None:
    line = Line()
    client, _ = make(line)
    client.observe(25, {})
    observation = line.sent[-1]
    assert isinstance(observation, Observation) and observation.progress == 0.25


def test_a_decision_is_applied_at_its_tick_and_receipted() -> None:
    line = Line()
    client, model = make(line)
    line.coming.append(decide(2.0, apply_at=3))
    client.observe(1, {})
    client.poll()
    assert model.rate == 1.0 and not line.receipts()
    client.observe(2, {})
    client.poll()
    assert model.rate == 2.0
    receipt = line.receipts()[0]
    assert (receipt.status, receipt.before, receipt.after, receipt.tick) == ("applied", 1.0, 2.0, 2)


def test_a_late_decision_expires_and_says_so() -> None:
    line = Line()
    client, model = make(line)
    for step in range(5):
        client.observe(step, {})
    line.coming.append(decide(2.0, apply_at=2, expires=4))
    client.poll()
    assert model.rate == 1.0
    assert line.receipts()[0].status == "expired" and "2 ticks" in line.receipts()[0].reason


def test_a_rejected_decision_changes_nothing_and_gets_no_receipt() -> None:
    line = Line()
    client, model = make(line)
    line.coming.append(decide(2.0, verdict="rejected"))
    client.observe(1, {})
    client.poll()
    assert model.rate == 1.0 and not line.receipts()


def test_rollback_restores_state_and_step_but_no_actuator() -> None:
    line = Line()
    client, model = make(line)
    for step in range(1, 12):
        model.step, model.weights = step, step * 10
        client.observe(step, {})
        client.poll()
    line.coming.append(decide(0.5, number=1, apply_at=11))
    line.coming.append(decide(4.0, actuator="run.rollback", number=2, apply_at=11))
    client.poll()
    assert (model.rate, model.step, model.weights) == (0.5, 0, 0)
    back = line.receipts()[-1]
    assert (back.actuator, back.before, back.after) == ("run.rollback", 11.0, 0.0)
    client.observe(1, {})
    assert client.tick == 12, "ticks never go back"


def test_a_risky_change_is_preceded_by_a_snapshot() -> None:
    line = Line()
    client, model = make(line)
    for step in range(1, 4):
        model.step = step
        client.observe(step, {})
        client.poll()
    line.coming.append(decide(2.0, apply_at=4, snapshot_first=True))
    client.poll()
    line.coming.append(decide(3.0, actuator="run.rollback", number=2, apply_at=4))
    client.poll()
    assert model.step == 3


def test_an_operator_holds_resumes_and_stops() -> None:
    line = Line()
    client, model = make(line)
    line.coming.extend(
        [
            OperatorCommand(id="a", action="hold"),
            OperatorCommand(id="a", action="hold"),
            decide(2.0, apply_at=99),
            OperatorCommand(id="b", action="resume"),
        ]
    )
    client.observe(1, {})
    client.poll()
    assert not client.held
    line.coming.append(OperatorCommand(id="c", action="stop", reason="enough"))
    client.poll()
    assert client.stopping == "enough"
    assert model.rate == 1.0


def test_a_request_to_stop_is_obeyed_at_the_next_boundary() -> None:
    client, _ = make(Line())
    client.request_stop("SIGTERM")
    assert client.stopping != "SIGTERM"
    client.poll()
    assert client.stopping == "SIGTERM"


def test_a_new_incarnation_restores_values_and_answers_what_was_left_open() -> None:
    past = Past(incarnation=2, tick=40, last_seq=99, values={"rate": 3.0}, unanswered=(decide(9.0),))
    line = Line(past)
    client, model = make(line)
    assert model.rate == 3.0 and client.tick == 40
    started = line.sent[0]
    assert isinstance(started, RunStarted) and (started.incarnation, started.tick) == (3, 40)
    assert line.receipts()[0].status == "unknown"


def test_lockstep_waits_for_the_tick_to_close() -> None:
    line = Line()
    client, model = make(line, lockstep=True)
    line.coming.extend([decide(2.0, apply_at=2), StepClosed(tick=1)])
    client.observe(1, {})
    client.poll()
    assert model.rate == 2.0


def test_one_tick_that_never_closes_costs_the_long_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_learner.client.LOCKSTEP_S", 0.01)
    monkeypatch.setattr("oven_learner.client.AFTER_TIMEOUT_S", 0.0)
    line = Line()
    client, _ = make(line, lockstep=True)
    for step in range(1, 4):
        client.observe(step, {})
        client.poll()
    client.close("completed")
    ended = line.sent[-1]
    assert isinstance(ended, RunEnded) and ended.lockstep_timeouts == 3


def test_a_rule_for_an_actuator_that_is_not_there_is_an_error_at_start_up() -> None:
    actuators = Actuators()
    actuators.scalar("rate", lambda: 1.0, lambda v: None, low=0.1, high=10)
    client = OvenClient(Line(), actuators, rules=Rules(autonomy_of={"rato": "auto"}))
    with pytest.raises(UnknownNameError, match="did you mean 'rate'"):
        client.start()


def test_an_unreachable_bus_is_an_error_at_start_up_only() -> None:
    class Dead(Line):
        def open(self) -> Past:
            raise BusError("no server")

    client, _ = make(Dead(), start=False)
    with pytest.raises(BusError, match="no server"):
        client.start()


def test_a_link_that_breaks_leaves_training_alone() -> None:
    class Broken(Line):
        def receive(self) -> Body | None:
            raise RuntimeError("thread died")

    client, model = make(Broken())
    client.observe(1, {"loss": 1.0})
    client.poll()
    assert model.rate == 1.0 and not client.stopping
