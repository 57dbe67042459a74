"""Actuators that come or change while training: what is refused, when it is said, what a resume makes of it."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from tests.support.decisions import decide, make

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.messages import ActuatorSpec, Receipt, RunStarted
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.resume_state import ResumeState
from oven_learner.testing import FakeLink


class Knobs:
    def __init__(self) -> None:
        self.mode, self.rate, self.shares = "a", 1.0, {"x": 0.5, "y": 0.5}
        self.registry = registry = Actuators()
        registry.choice("mode", lambda: self.mode, lambda name: setattr(self, "mode", name), ("a", "b"))
        registry.scalar("rate", lambda: self.rate, lambda v: setattr(self, "rate", v), low=0.1, high=10, scale="log")
        registry.simplex("mix", lambda: self.shares, lambda shares: setattr(self, "shares", shares))
        registry.action("look", lambda _: None)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("mode", {"choices": ("b", "c")}, "first set it to an allowed value"),
        ("mode", {"choices": ()}, "'a' is not one of "),
        ("mode", {"choices": "abc"}, "the choices 'abc' are not names"),
        ("mode", {"low": 1.0}, "choice, which has no bounds to change"),
        ("rate", {"choices": ("a",)}, "scalar, which has no choices to change"),
        ("rate", {"high": 0.5}, r"rate is currently 1, outside its bounds \[0.1, 0.5\]; widen them"),
        ("rate", {"low": 0.0}, "low > 0"),
        ("mix", {"choices": ("x",)}, "simplex, which has no choices to change"),
        ("look", {"high": 1.0}, "action, which has no bounds to change"),
    ],
)
def test_an_invalid_update_is_refused_and_changes_nothing(name: str, changes: Any, says: str) -> None:
    knobs = Knobs()
    before = knobs.registry.specs()
    with pytest.raises(ConfigError, match=says):
        knobs.registry.update(name, **changes)
    assert knobs.registry.specs() == before


def test_choices_and_bounds_can_be_added_and_removed() -> None:
    knobs = Knobs()
    knobs.registry.update("mode", choices=("a", "c"))
    assert knobs.registry.apply("mode", "b").status == "rejected"
    assert knobs.registry.apply("mode", "c").status == "applied" and knobs.mode == "c"
    knobs.registry.update("rate", high=100)
    spec = knobs.registry.spec("rate")
    assert (spec.low, spec.high, spec.scale) == (0.1, 100, "log")
    knobs.shares = {"x": 0.25, "z": 0.75}
    knobs.registry.update("mix")
    assert knobs.registry.spec("mix").choices == ("x", "z")
    knobs.shares = {"x": 0.25, "z": 0.5}
    with pytest.raises(ConfigError, match="sum to 1; first set it to an allowed value"):
        knobs.registry.update("mix")
    with pytest.raises(UnknownNameError, match="rate"):
        knobs.registry.update("rat", high=2)


def announced(line: FakeLink) -> list[ActuatorAnnounced]:
    return [message for message in line.sent if isinstance(message, ActuatorAnnounced)]


def test_an_announcement_is_published_at_the_next_boundary_before_decisions_are_applied() -> None:
    line = FakeLink()
    client, model = make(line)
    client.observe(1, {})
    client.actuators.update("rate", high=1000)
    client.announce("rate")
    client.announce("rate")
    assert not announced(line)
    model.rate = 1.5
    line.incoming.append(decide(500.0, apply_at=2))
    client.poll()
    (announcement,) = announced(line)
    assert (
        announcement.actuator.name,
        announcement.actuator.high,
        announcement.actuator.value,
        announcement.tick,
        announcement.step,
    ) == ("rate", 1000, 1.5, 1, 1)
    assert [type(message) for message in line.sent[-2:]] == [ActuatorAnnounced, Receipt] and model.rate == 500.0
    client.observe(2, {})
    client.poll()
    assert len(announced(line)) == 1
    with pytest.raises(UnknownNameError, match="rate"):
        client.announce("rat")


def test_before_the_start_only_run_started_announces_an_actuator() -> None:
    line = FakeLink()
    client, _ = make(line, start=False)
    client.actuators.update("rate", high=1000)
    client.announce("rate")
    client.start()
    client.observe(1, {})
    client.poll()
    run = line.sent[0]
    assert isinstance(run, RunStarted) and not announced(line)
    assert {spec.name: spec.high for spec in run.actuators}["rate"] == 1000


def test_an_unreadable_actuator_is_not_announced_and_training_continues(caplog: pytest.LogCaptureFixture) -> None:
    line = FakeLink()
    client, _ = make(line)
    values = [1.0]
    client.actuators.scalar("odd", lambda: values[0], values.append, low=0, high=2)
    client.announce("odd")
    values.clear()
    with caplog.at_level(logging.ERROR, "oven.learner"):
        client.observe(1, {})
        client.poll()
    assert not announced(line) and "odd was not announced: it cannot be read: list index" in caplog.text


def test_a_resumed_training_has_the_bounds_that_were_announced_last(caplog: pytest.LogCaptureFixture) -> None:
    wide = ActuatorSpec(name="rate", kind="scalar", scale="log", low=0.01, high=1000, value=1.0)
    past = ResumeState(
        incarnation=1, tick=5, training="1", values={"1": {"rate": 500.0}}, announced={"1": {"rate": wide}}
    )
    line = FakeLink(past=past)
    _, model = make(line)
    run = line.sent[0]
    assert isinstance(run, RunStarted) and model.rate == 500.0
    assert run.actuators[0].high == 1000 and run.actuators[0].value == 500.0
    narrow = wide.model_copy(update={"low": 5.0, "high": 6.0})
    with caplog.at_level(logging.WARNING, "oven.learner"):
        make(FakeLink(past=ResumeState(incarnation=1, training="1", announced={"1": {"rate": narrow}})))
    assert "cannot restore the last announced bounds: rate is currently 1, outside its bounds" in caplog.text


def test_a_choice_that_is_not_registered_yet_is_not_resumed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    knobs = Knobs()
    past = ResumeState(incarnation=1, tick=5, training="1", values={"1": {"mode": "c"}})
    with caplog.at_level(logging.WARNING, "oven.learner"):
        OvenClient(FakeLink(past=past), knobs.registry, max_steps=9).start()
    assert knobs.mode == "a" and "'c' is not one of a, b" in caplog.text


def test_a_restored_value_may_register_another_actuator() -> None:
    knobs = Knobs()

    def grow(size: float) -> None:
        knobs.rate = size
        knobs.registry.scalar("rate of the new layer", lambda: 1.0, lambda _: None, low=0, high=2)

    knobs.registry.scalar("layers", lambda: knobs.rate, grow, low=1, high=4)
    past = ResumeState(incarnation=1, tick=5, training="1", values={"1": {"layers": 2.0}})
    OvenClient(FakeLink(past=past), knobs.registry, max_steps=9).start()
    assert knobs.rate == 2.0 and "rate of the new layer" in knobs.registry
