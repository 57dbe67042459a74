"""Decisions of one plan: the learner carries out all of them or none."""

from __future__ import annotations

from tests.support.decisions import decide, make

from oven_core.protocol.messages import Decision, Value
from oven_learner.testing import FakeLink


def planned(first: str, value: Value, second: str, second_value: Value) -> list[Decision]:
    """Two decisions of one plan, in the order in which their ballots were opened."""
    both = (first, second)
    return [
        decide(what, actuator=name, number=number).model_copy(update={"plan": both})
        for number, (name, what) in enumerate(((first, value), (second, second_value)), 1)
    ]


def test_a_plans_rollback_is_skipped_if_its_setting_was_rejected() -> None:
    """Whatever their order: a rollback cannot be taken back by writing a value."""
    line = FakeLink()
    client, model = make(line)
    client.observe(1, {"loss": 1.0})
    client.poll()
    line.incoming.extend(planned("run.rollback", 0.0, "rate", 999.0))  # above its bound
    client.observe(2, {"loss": 1.0})
    client.poll()
    receipts = {receipt.actuator: receipt for receipt in line.receipts()}
    assert model.rate == 1.0 and receipts["rate"].status == "rejected" and receipts["run.rollback"].status == "skipped"
    assert "all or nothing, and rate was rejected" in receipts["run.rollback"].reason


def test_a_plans_setting_is_reverted_if_its_rollback_fails() -> None:
    line = FakeLink()
    client, model = make(line)
    client.observe(1, {"loss": 1.0})
    client.poll()
    line.incoming.extend(planned("rate", 0.5, "run.rollback", -5.0))  # nothing is that old
    client.observe(2, {"loss": 1.0})
    client.poll()
    receipts = line.receipts()
    assert [(receipt.actuator, receipt.status) for receipt in receipts] == [
        ("rate", "applied"), ("run.rollback", "rejected"), ("rate", "applied"),
    ]  # fmt: skip
    assert receipts[2].after == 1.0 == model.rate and not receipts[2].decision_id
    assert "run.rollback was rejected" in receipts[2].reason


def test_a_plan_waits_until_all_of_it_has_arrived() -> None:
    line = FakeLink()
    client, model = make(line)
    first, second = planned("rate", 0.5, "run.rollback", 0.0)
    line.incoming.append(first)
    client.observe(1, {"loss": 1.0})
    client.poll()
    assert model.rate == 1.0 and not line.receipts()
    line.incoming.append(second)
    client.observe(2, {"loss": 1.0})
    client.poll()
    assert model.rate == 0.5 and [receipt.status for receipt in line.receipts()] == ["applied", "applied"]


def test_an_incomplete_plan_expires() -> None:
    line = FakeLink()
    client, model = make(line)
    line.incoming.append(planned("rate", 0.5, "run.rollback", 0.0)[0].model_copy(update={"expires_at_tick": 2}))
    for step in (1, 2, 3):
        client.observe(step, {"loss": 1.0})
        client.poll()
    assert model.rate == 1.0 and [receipt.status for receipt in line.receipts()] == ["expired"]
