"""Alerts as readers fold them: news once, each agent in its own bounds, and gone with the training or the agent."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pydantic import ValidationError
from tests.support.mesh_log import RUN, Log, event

from oven_core.bus.streams import VOTE_BYTES
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.alerts import MAX_REASON_LENGTH, Alert
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, LogMessage, Observation
from oven_runs.log.active_alerts import MAX_CHANGES, MAX_PER_AGENT, ActiveAlerts


def alert(symptom: str = "confidence_collapse", state: str = "raised", value: float = 0.02) -> Alert:
    return Alert.model_validate(
        {"state": state, "symptom": symptom, "metric": "confidence/std", "value": value, "expected": 0.1, "tick": 3}
    )


class AlertReceiver:
    def __init__(self) -> None:
        self.alerts, self.seq = ActiveAlerts(), 0

    def hear(self, agent: str, body: LogMessage) -> Alert | None:
        self.seq += 1
        kind = {Alert: "alert", AgentStatus: "agent"}.get(type(body), "observation")
        return self.alerts.feed(event(self.seq, f"oven.{RUN}.{kind}" + (f".{agent}" if agent else ""), body))

    def tick(self, tick: int) -> None:
        self.hear("", Observation(incarnation=1, n=self.seq, tick=tick, step=tick, progress=0.0, metrics={}))


def test_a_repeated_alert_is_not_reported() -> None:
    receiver = AlertReceiver()
    assert receiver.hear("amy", alert()) is not None
    assert receiver.hear("amy", alert()) is None
    assert receiver.hear("bob", alert()) is not None, "his own"
    assert receiver.hear("amy", alert(state="cleared")) is not None
    assert receiver.hear("amy", alert(state="cleared")) is None
    assert [agent for agent, _ in receiver.alerts.active()] == ["bob"]


def test_a_flood_of_alerts_does_not_crowd_out_other_agents() -> None:
    receiver = AlertReceiver()
    reports = [receiver.hear("eve", alert(f"s{n}")) for n in range(500)]
    assert sum(report is not None for report in reports) == MAX_CHANGES
    assert receiver.hear("amy", alert()) is not None
    for tick in range(1, 20):
        receiver.tick(tick)
        for n in range(20):
            receiver.hear("eve", alert(f"t{tick}-{n}"))
    assert len(receiver.alerts.by_agent["eve"]) == MAX_PER_AGENT and len(receiver.alerts.by_agent["amy"]) == 1
    receiver.hear("eve", AgentStatus(state="left"))
    assert "eve" not in receiver.alerts.by_agent


def test_no_alert_fills_a_vote() -> None:
    longest = Alert(
        state="raised", symptom="s" * 64, metric="m" * 120, value=-1.23456789e-300, expected=float("-inf"),
        tick=2**60, reason="\u2028" * MAX_REASON_LENGTH,
    )  # fmt: skip
    assert len(longest.wire()) < VOTE_BYTES / 5
    for wrong in (
        {"symptom": ""},
        {"symptom": "a b"},
        {"symptom": "x" * 65},
        {"state": "maybe"},
        {"metric": "m" * 121},
    ):
        with pytest.raises(ValidationError):
            Alert.model_validate(alert().model_dump() | wrong)


def with_alerts(log: Log) -> list[Event]:
    """The log with alerts between all of its events, counted anew."""
    events: list[Event] = []
    for number, entry in enumerate(log.events):
        state = "cleared" if number % 2 else "raised"
        for subject, body in ((entry.subject, entry.body), (f"oven.{RUN}.alert.eve", alert(f"s{number % 7}", state))):
            assert not isinstance(body, Malformed)
            events.append(event(len(events) + 1, subject, body))
    return events


def test_the_mesh_ignores_alerts() -> None:
    log = Log.running("amy", "bob")
    log.propose("amy", 0.5)
    log.tick(2)
    plain, flooded = Mesh(RUN), Mesh(RUN)
    for entry in log.events:
        plain.step(entry)
    for entry in with_alerts(log):
        flooded.step(entry)
    assert dict(plain.state.counters) == dict(flooded.state.counters)
    assert {n: str(s) for n, s in plain.state.agents.items()} == {n: str(s) for n, s in flooded.state.agents.items()}


def test_an_alert_is_accepted_on_its_own_subject_only() -> None:
    good = Event.read(1, f"oven.{RUN}.alert.amy", alert().wire(), datetime.now(UTC))
    assert good.body == alert() and good.author == "amy"
    for kind in ("agent", "vote", "decision"):
        assert isinstance(Event.read(1, f"oven.{RUN}.{kind}.amy", alert().wire(), datetime.now(UTC)).body, Malformed)
