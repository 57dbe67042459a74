"""Helpers for the tests of the learner's client: a model with a knob, and decisions on it."""

from __future__ import annotations

from typing import Any

from oven_core.protocol.messages import Decision, Value
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.rollback.memory_snapshots import Snapshots
from oven_learner.testing import FakeLink, decision


class Model:
    """A model and its knob."""

    def __init__(self) -> None:
        self.rate = 1.0
        self.weights = 0
        self.step = 0


def decide(value: Value, *, actuator: str = "rate", expires: int = 50, **settings: Any) -> Decision:
    return decision(actuator, value, expires=expires, **settings)


def make(
    line: FakeLink, *, lockstep: bool = False, start: bool = True, training: str = "1"
) -> tuple[OvenClient, Model]:
    """Return a client with that one knob and snapshots."""
    model = Model()
    actuators = Actuators()
    actuators.scalar("rate", lambda: model.rate, lambda v: setattr(model, "rate", v), low=0.01, high=100, scale="log")

    def restore(snapshot: tuple[int, int]) -> None:
        model.step, model.weights = snapshot

    snapshots = Snapshots(lambda: (model.step, (model.step, model.weights)), restore)
    client = OvenClient(line, actuators, training=training, max_steps=100, lockstep=lockstep, snapshots=snapshots)
    if start:
        client.start()
    return client, model
