"""The learner's client against a link of its own: order, receipts, expiry, rollback, resume, lockstep."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from tests.support.decisions import decide, make
from tests.support.loops import Loop

from oven_core.errors import BusError, UnknownNameError
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.messages import LogMessage, Observation, Receipt, RunEnded, RunStarted, StepClosed
from oven_core.protocol.rules import Rules
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.link_interface import build_observation
from oven_learner.link.resume_state import ResumeState
from oven_learner.link.worker_messages import pack_observation, unpack_observation
from oven_learner.testing import FakeLink


def test_a_run_is_announced_observed_and_ended_in_order() -> None:
    line = FakeLink()
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
        "rate", "run.hold", "run.stop", "run.checkpoint", "run.rollback", "run.undo_rollback"
    }  # fmt: skip
    for spec in started.actuators[1:]:
        assert spec.effect == ACTUATORS[spec.name].effect != "setting"


def test_a_decision_is_applied_at_its_tick_and_receipted() -> None:
    line = FakeLink()
    client, model = make(line)
    line.incoming.append(decide(2.0, apply_at=3))
    client.observe(1, {})
    client.poll()
    assert model.rate == 1.0 and not line.receipts()
    client.observe(2, {})
    client.poll()
    assert model.rate == 2.0
    receipt = line.receipts()[0]
    assert (receipt.status, receipt.before, receipt.after, receipt.tick) == ("applied", 1.0, 2.0, 2)


def test_a_checkpoint_that_is_only_a_copy_for_rollback_does_not_promise_a_file() -> None:
    line, files = FakeLink({3: ("run.checkpoint", None)}), FakeLink({1: ("run.checkpoint", None)})
    Loop().run(line)
    (receipt,) = line.receipts()
    assert (receipt.status, receipt.after) == ("applied", 3.0) and "wrote no file" in receipt.reason
    saved = list[int]()
    client = OvenClient(files, Actuators(), training="1", save=lambda: saved.append(1))
    client.start()
    client.observe(1, {})
    client.poll()
    (receipt,) = files.receipts()
    assert saved and (receipt.status, receipt.after, receipt.reason) == ("applied", 1.0, "")
    units = [
        next(spec.unit for spec in started.actuators if spec.name == "run.checkpoint")
        for started in (line.sent[0], files.sent[0])
        if isinstance(started, RunStarted)
    ]
    assert units == ["step of a copy for run.rollback", "step"]


def test_a_copy_of_a_decision_is_ignored() -> None:
    line = FakeLink()
    client, model = make(line)
    for _ in range(2):
        line.incoming.append(decide(2.0))
        client.observe(1, {})
        client.poll()
        model.rate = 5.0
    line.incoming.append(decide(2.0))
    client.close("completed")
    assert [receipt.status for receipt in line.receipts()] == ["applied"] and model.rate == 5.0
    line = FakeLink(past=ResumeState(incarnation=1, tick=1, decided_ids=frozenset({decide(2.0).id})))
    again, model = make(line)
    line.incoming.append(decide(2.0))
    again.poll()
    assert model.rate == 1.0


def test_a_late_decision_expires_and_says_so() -> None:
    line = FakeLink()
    client, model = make(line)
    for step in range(5):
        client.observe(step, {})
    line.incoming.append(decide(2.0, apply_at=2, expires=4))
    client.poll()
    assert model.rate == 1.0
    assert line.receipts()[0].status == "expired" and "2 ticks" in line.receipts()[0].reason


def test_a_rejected_decision_changes_nothing_and_gets_no_receipt() -> None:
    line = FakeLink()
    client, model = make(line)
    line.incoming.append(decide(2.0, verdict="rejected"))
    client.observe(1, {})
    client.poll()
    assert model.rate == 1.0 and not line.receipts()


def test_rollback_restores_state_and_step_but_no_actuator() -> None:
    line = FakeLink()
    client, model = make(line)
    for step in range(1, 12):
        model.step, model.weights = step, step * 10
        client.observe(step, {})
        client.poll()
    line.incoming.append(decide(0.5, number=1, apply_at=11))
    line.incoming.append(decide(4.0, actuator="run.rollback", number=2, apply_at=11))
    client.poll()
    assert (model.rate, model.step, model.weights) == (0.5, 0, 0)
    back = line.receipts()[-1]
    assert (back.actuator, back.before, back.after) == ("run.rollback", 11.0, 0.0)
    client.observe(1, {})
    assert client.tick == 12, "ticks never go back"


def test_a_rollback_can_be_undone_once_until_the_next_one() -> None:
    line = FakeLink()
    client, model = make(line)

    def trained(steps: int) -> None:
        for _ in range(steps):
            model.step, model.weights = model.step + 1, model.weights + 10
            client.observe(model.step, {})
            client.poll()

    def done(actuator: str, to: float | None, number: int) -> Receipt:
        line.incoming.append(decide(to, actuator=actuator, number=number, apply_at=client.tick))
        client.poll()
        return line.receipts()[-1]

    assert done("run.undo_rollback", None, 1).status == "rejected", "there was none"
    trained(11)
    assert done("run.rollback", 4.0, 2).after == 0.0
    trained(3)
    again = done("run.undo_rollback", None, 3)
    assert (again.before, again.after) == (3.0, 11.0)
    assert (model.step, model.weights) == (11, 110)
    assert done("run.undo_rollback", None, 4).status == "rejected", "it is undone already"
    trained(2)
    back = done("run.rollback", 12.0, 5)
    assert (back.before, back.after) == (13.0, 11.0), "to what was restored, and not to the way that was left"


def test_a_rollback_to_a_future_tick_is_refused() -> None:
    """The newest snapshot is before it, and nobody who names a tick means that one."""
    line = FakeLink()
    client, model = make(line)
    for step in range(1, 12):
        model.step = step
        client.observe(step, {})
        client.poll()
    line.incoming.append(decide(99_999_999.0, actuator="run.rollback", number=1, apply_at=11))
    client.poll()
    refused = line.receipts()[-1]
    assert (refused.status, model.step) == ("rejected", 11)
    assert refused.reason == (
        "tick 99999999 is in the future; give a tick from 0 to 11, or no value for the newest snapshot"
    )
    line.incoming.append(decide(None, actuator="run.rollback", number=2, apply_at=11))
    client.poll()
    assert line.receipts()[-1].status == "applied" and model.step < 11


def test_an_operators_rollback_goes_to_the_tick_or_is_refused_with_the_kept_ones() -> None:
    line = FakeLink()
    client, model = make(line)
    for step in range(1, 488):
        model.step = step
        client.observe(step, {})
        client.poll()

    def rolled_back(tick: float, number: int) -> Receipt:
        order = decide(tick, actuator="run.rollback", number=number, apply_at=487, expires=500)
        line.incoming.append(order.model_copy(update={"command": str(number)}))
        client.poll()
        return line.receipts()[-1]

    refused = rolled_back(100.0, 1)
    assert (refused.status, model.step) == ("rejected", 487)
    assert "is from tick 0, 487 ticks back" in refused.reason and "choose the tick of a snapshot: 0, " in refused.reason
    ticks = refused.reason.rsplit(": ", 1)[1].split(", ")
    assert (rolled_back(float(ticks[-3]), 2).status, model.step) == ("applied", int(ticks[-3]))


def test_a_risky_change_is_preceded_by_a_snapshot() -> None:
    line = FakeLink()
    client, model = make(line)
    for step in range(1, 4):
        model.step = step
        client.observe(step, {})
        client.poll()
    line.incoming.append(decide(2.0, apply_at=4, snapshot_first=True))
    client.poll()
    line.incoming.append(decide(3.0, actuator="run.rollback", number=2, apply_at=4))
    client.poll()
    assert model.step == 3


def test_a_request_to_stop_is_obeyed_at_the_next_boundary() -> None:
    client, _ = make(FakeLink())
    client.request_stop("SIGTERM")
    assert client.stop_reason != "SIGTERM"
    client.poll()
    assert client.stop_reason == "SIGTERM"


def test_a_new_incarnation_restores_values_and_answers_open_decisions() -> None:
    past = ResumeState(
        incarnation=2, tick=40, last_seq=99, values={"1": {"rate": 3.0}}, unanswered_decisions=(decide(9.0),)
    )
    line = FakeLink(past=past)
    client, model = make(line)
    assert model.rate == 3.0 and client.tick == 40
    started = line.sent[0]
    assert isinstance(started, RunStarted) and (started.incarnation, started.tick) == (3, 40)
    assert line.receipts()[0].status == "unknown"


def test_another_training_continues_the_ticks_but_no_value() -> None:
    past = ResumeState(
        incarnation=2, tick=40, last_seq=99, values={"1": {"rate": 3.0}, "2": {"rate": 5.0}}, training="1"
    )
    for training, rate in (("1", 3.0), ("2", 5.0), ("sft", 1.0)):
        line = FakeLink(past=past)
        client, model = make(line, start=False, training=training)
        client.start()
        started = line.sent[0]
        assert isinstance(started, RunStarted) and (started.training, started.tick) == (training, 40)
        assert model.rate == rate


def test_decisions_for_the_previous_training_are_not_applied() -> None:
    meant = decide(9.0, apply_at=41, expires=60)  # at tick 40, and in the log after the learner had read that
    line = FakeLink(past=ResumeState(incarnation=1, tick=40, training="1"))
    client, model = make(line, start=False, training="2")
    client.start()
    line.incoming += [meant, decide(2.0, number=2, apply_at=41, expires=60).model_copy(update={"command": "set-1"})]
    client.observe(1, {})
    client.poll()
    assert model.rate == 2.0, "an operator's word counts whenever it came"
    assert [(r.status, r.after) for r in line.receipts()] == [("expired", None), ("applied", 2.0)]
    line.incoming.append(decide(4.0, number=3, apply_at=42, expires=60))
    client.observe(2, {})
    client.poll()
    assert model.rate == 4.0

    line = FakeLink(past=ResumeState(incarnation=1, tick=40, training="2"))
    client, model = make(line, start=False, training="2")
    client.start()
    line.incoming.append(meant)
    client.observe(1, {})
    client.poll()
    assert model.rate == 9.0, "the same training goes on"


def test_lockstep_waits_for_the_tick_to_close() -> None:
    line = FakeLink()
    client, model = make(line, lockstep=True)
    line.incoming.extend([decide(2.0, apply_at=2), StepClosed(tick=1)])
    client.observe(1, {})
    client.poll()
    assert model.rate == 2.0


def test_a_tick_that_never_closes_costs_the_long_wait_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_learner.client.inbox.LOCKSTEP_TIMEOUT_S", 0.01)
    monkeypatch.setattr("oven_learner.client.inbox.REPEATED_TIMEOUT_S", 0.0)
    line = FakeLink()
    client, _ = make(line, lockstep=True)
    for step in range(1, 4):
        client.observe(step, {})
        client.poll()
    client.close("completed")
    ended = line.sent[-1]
    assert isinstance(ended, RunEnded) and ended.lockstep_timeouts == 3


def test_a_rule_for_an_unknown_actuator_is_an_error_at_start() -> None:
    actuators = Actuators()
    actuators.scalar("rate", lambda: 1.0, lambda v: None, low=0.1, high=10)
    client = OvenClient(FakeLink(), actuators, rules=Rules(autonomy_of={"rato": "auto"}))
    with pytest.raises(UnknownNameError, match="did you mean 'rate'"):
        client.start()


def test_an_unreachable_bus_is_an_error_only_at_start() -> None:
    class Dead(FakeLink):
        def open(self) -> ResumeState:
            raise BusError("no server")

    client, _ = make(Dead(), start=False)
    with pytest.raises(BusError, match="no server"):
        client.start()


def test_a_broken_link_does_not_disturb_training() -> None:
    class Broken(FakeLink):
        def receive(self) -> LogMessage | None:
            raise RuntimeError("thread died")

    client, model = make(Broken())
    client.observe(1, {"loss": 1.0})
    client.poll()
    assert model.rate == 1.0 and not client.stopping
    assert client.close("completed")


@pytest.mark.parametrize(
    ("stopping", "error", "reason", "detail"),
    [
        ("", None, "completed", ""),
        ("a decision stops the run", None, "stopped", "a decision stops the run"),
        ("", KeyboardInterrupt(), "stopped", "interrupted from the keyboard"),
        ("", ValueError("a shape"), "failed", "ValueError: a shape"),
    ],
)
def test_closing_without_a_reason_says_how_the_run_ended(
    stopping: str, error: BaseException | None, reason: str, detail: str
) -> None:
    link = FakeLink()
    with contextlib.suppress(ValueError, KeyboardInterrupt):
        client, _ = make(link)
        client.stop_reason = stopping
        try:
            if error is not None:
                raise error
        finally:
            client.close()
    ended = link.sent[-1]
    assert isinstance(ended, RunEnded) and (ended.reason, ended.detail) == (reason, detail)


def test_a_bad_metric_alone_is_dropped_and_named_once(caplog: pytest.LogCaptureFixture) -> None:
    link = FakeLink()
    client, _ = make(link)
    bad: Any = {"loss": 1.0, "nothing": None, "huge": 10**400, 7: 1.0, "flag": True}
    with caplog.at_level("WARNING", logger="oven.learner"):
        client.observe(1, bad)
        client.observe(2, bad)
        client.close(metrics=bad)
    assert [seen.metrics for seen in link.observed()] == [{"loss": 1.0, "flag": 1.0}] * 2
    observation = unpack_observation(pack_observation(1, 0, (1, 1, 1, 1, 0.5, bad)))
    assert build_observation(*observation).metrics == {"loss": 1.0, "flag": 1.0}
    warned = [record.getMessage().split(" is not published")[0] for record in caplog.records]
    assert warned == ["the metric 'nothing'", "the metric 'huge'", "the metric 7"]
