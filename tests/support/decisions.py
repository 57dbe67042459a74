"""For the tests of the learner's client: something to decide upon, and decisions on it."""

from __future__ import annotations

from typing import Any

from oven_controller.protocol.messages import Decision, Value
from oven_learner.testing import decision


class Model:
    """What is trained, and its knob."""

    def __init__(self) -> None:
        self.rate = 1.0
        self.weights = 0
        self.step = 0


def decide(value: Value, *, actuator: str = "rate", expires: int = 50, **settings: Any) -> Decision:
    return decision(actuator, value, expires=expires, **settings)
