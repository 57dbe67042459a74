"""An operator's commands to the learner: each is answered once, also while it is held and after a restart."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.decisions import decide, make

from oven_core.protocol.messages import LogMessage, RunEnded
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.resume_state import ResumeState
from oven_learner.testing import FakeLink


def test_an_operator_holds_resumes_and_stops() -> None:
    line = FakeLink()
    client, model = make(line)
    line.incoming.extend(
        [
            OperatorCommand(id="a", action="hold"),
            OperatorCommand(id="a", action="hold"),
            decide(2.0, apply_at=99),
            OperatorCommand(id="b", action="resume"),
        ]
    )
    client.observe(1, {})
    client.poll()
    assert not client.hold_reason
    line.incoming.append(OperatorCommand(id="c", action="stop", reason="enough"))
    client.poll()
    assert client.stop_reason == "enough"
    assert model.rate == 1.0


def words(line: FakeLink) -> list[tuple[str, str, str, str]]:
    return [(receipt.command, receipt.actuator, receipt.status, receipt.reason) for receipt in line.receipts()]


def test_each_command_to_the_learner_is_answered_once_with_its_outcome() -> None:
    line = FakeLink()
    client, _ = make(line)
    line.incoming.extend(
        [
            OperatorCommand(id="a", action="resume"),
            OperatorCommand(id="b", action="hold", reason="a look"),
            OperatorCommand(id="c", action="hold", reason="me too"),
            OperatorCommand(id="b", action="hold", reason="a look"),
            OperatorCommand(id="m", action="mute", agent="lr"),
            OperatorCommand(id="d", action="resume"),
            OperatorCommand(id="e", action="stop", reason="enough"),
            OperatorCommand(id="f", action="stop"),
        ]
    )
    client.poll()
    client.poll()
    assert words(line) == [
        ("a", "run.hold", "noop", "the run is not held"),
        ("b", "run.hold", "applied", "a look"),
        ("c", "run.hold", "noop", "the run is already held: a look"),
        ("d", "run.hold", "applied", "training continues: requested by an operator"),
        ("e", "run.stop", "applied", "the run stops after this step: enough"),
        ("f", "run.stop", "noop", "the run is already stopping: enough"),
    ]
    assert all(receipt.decision_id == "" for receipt in line.receipts())
    assert [receipt.n for receipt in line.receipts()] == [2, 3, 4, 5, 6, 7]


class Answering(FakeLink):
    """Says the next thing as soon as it is heard that the last one was done."""

    def __init__(self, *orders: LogMessage) -> None:
        super().__init__()
        self.orders = deque(orders)
        self.held: list[str] = []
        self.client: OvenClient | None = None

    def receive(self) -> LogMessage | None:
        if self.client is None or not self.orders or len(self.held) > len(self.receipts()):
            return None
        self.held.append(self.client.hold_reason)
        return self.orders.popleft()


def test_while_held_a_set_and_a_resume_apply_at_once() -> None:
    line = Answering(
        OperatorCommand(id="a", action="hold", reason="a look"),
        decide(2.0, apply_at=500, expires=520),
        decide(3.0, apply_at=501, expires=520, number=2),
        OperatorCommand(id="b", action="resume"),
    )
    client, model = make(line)
    line.client = client
    client.observe(1, {})
    client.poll()
    assert line.held == ["", "a look", "a look", "a look"] and not client.hold_reason
    assert (model.rate, client.tick) == (3.0, 1)
    assert [(r.status, r.after) for r in line.receipts()[1:3]] == [("applied", 2.0), ("applied", 3.0)]


def test_while_held_work_that_waits_for_a_step_boundary_is_done() -> None:
    line = FakeLink()
    line.incoming.append(OperatorCommand(id="a", action="hold"))
    client, model = make(line)
    rates: list[float] = []

    def meanwhile() -> None:
        rates.append(model.rate)
        line.incoming.append(OperatorCommand(id="b", action="resume"))

    client.while_held = meanwhile
    client.poll()
    assert rates == [model.rate] and not client.hold_reason


def test_while_held_a_stop_ends_the_run() -> None:
    line = Answering(OperatorCommand(id="a", action="hold"), OperatorCommand(id="b", action="stop", reason="enough"))
    client, _ = make(line)
    line.client = client
    client.poll()
    assert (client.stop_reason, line.receipts()[-1].command) == ("enough", "b")


def test_after_a_restart_unanswered_commands_are_answered_as_unknown() -> None:
    pending = OperatorCommand(id="b", action="stop")
    line = FakeLink(
        past=ResumeState(incarnation=1, tick=4, last_seq=9, commands={"a": None, "b": pending, "local-0": None})
    )
    client, _ = make(line)
    (receipt,) = line.receipts()
    assert (receipt.command, receipt.actuator, receipt.status, receipt.incarnation) == ("b", "run.stop", "unknown", 2)
    assert receipt.reason == "the learner restarted before it executed this; send stop again if you still need it"
    line.incoming.extend([OperatorCommand(id="a", action="stop"), pending])
    client.poll()
    assert not client.stopping and len(line.receipts()) == 1
    client.hold("no judge answers")
    line.incoming.append(OperatorCommand(id="c", action="resume"))
    client.poll()
    assert words(line)[1:] == [
        ("local-0", "run.hold", "applied", "no judge answers"),
        ("c", "run.hold", "applied", "training continues: requested by an operator"),
    ]


ids = st.sampled_from(["a", "b", "c", "d", "e"])


operator_commands = st.builds(
    OperatorCommand, id=ids, action=st.sampled_from(["hold", "resume", "stop", "mute", "set"])
)


@given(st.lists(st.lists(operator_commands, max_size=6), min_size=1, max_size=5), st.data())
def test_each_command_has_one_receipt_however_often_the_learner_restarts(
    lives: list[list[OperatorCommand]], data: st.DataObject
) -> None:
    """Each life hears some of what was said in it and dies: the rest it left unread, or it ended in order."""
    commands: dict[str, OperatorCommand | None] = {}
    answered: list[str] = []
    for n, operator_sent in enumerate(lives):
        line = FakeLink(past=ResumeState(incarnation=n, commands=commands))
        client, _ = make(line)
        for command in operator_sent:
            if command.action in ("hold", "resume", "stop"):
                commands.setdefault(command.id, command)
        delivered = data.draw(st.integers(0, len(operator_sent)))
        line.incoming.extend([*operator_sent[:delivered], OperatorCommand(id=f"end {n}", action="stop")])
        client.poll()
        if data.draw(st.booleans()):
            line.incoming.extend(operator_sent[delivered:])
            client.close("stopped")
        mine = [receipt.command for receipt in line.receipts() if not receipt.command.startswith("end")]
        answered += mine
        commands = {name: None if name in answered else command for name, command in commands.items()}
    last = FakeLink(past=ResumeState(incarnation=len(lives), commands=commands))
    make(last)
    answered += [receipt.command for receipt in last.receipts()]
    assert sorted(answered) == sorted(commands)


def test_commands_that_come_too_late_are_answered() -> None:
    line = FakeLink()
    client, model = make(line)
    client.request_stop("SIGTERM")
    client.poll()
    line.incoming.extend(
        [decide(2.0), decide(3.0, verdict="advised", number=2), OperatorCommand(id="a", action="hold")]
    )
    client.close("stopped")
    assert [(r.decision_id, r.command, r.status) for r in line.receipts()] == [
        ("000000000001-00", "", "expired"),
        ("", "a", "expired"),
    ]
    assert isinstance(line.sent[-1], RunEnded) and model.rate == 1.0


def test_in_lockstep_a_command_does_not_wait_for_a_dead_mesh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oven_learner.client.inbox.LOCKSTEP_TIMEOUT_S", 1.0)
    line = FakeLink()
    client, _ = make(line, lockstep=True)
    client.observe(1, {})
    line.incoming.append(OperatorCommand(id="a", action="resume"))
    client.poll()
    assert words(line) == [("a", "run.hold", "noop", "the run is not held")]
    monkeypatch.setattr("oven_learner.client.inbox.REPEATED_TIMEOUT_S", 0.0)
    client.observe(2, {})
    line.incoming.append(OperatorCommand(id="a", action="resume"))
    client.poll()
    client.close("completed")
    ended = line.sent[-1]
    assert isinstance(ended, RunEnded) and ended.lockstep_timeouts == 1, "one that was obeyed before cuts no wait short"
