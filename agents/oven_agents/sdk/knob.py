"""What an agent sees of an actuator: its announcement, and the value that the last receipt read back."""

from __future__ import annotations

from dataclasses import dataclass

from oven_controller.protocol.messages import ActuatorSpec, Receipt, Value


@dataclass(frozen=True, slots=True)
class Knob:
    """One actuator of a run."""

    spec: ActuatorSpec
    value: Value
    changed_at: int | None = None
    """Tick of the last receipt that changed it; None if it stands as announced."""

    @property
    def number(self) -> float:
        """The value of a scalar. Raises TypeError on other kinds."""
        if not isinstance(self.value, int | float):
            raise TypeError(f"{self.spec.name} is a {self.spec.kind}; its value {self.value!r} is not a number")
        return float(self.value)

    @property
    def shares(self) -> dict[str, float]:
        """The value of a simplex. Raises TypeError on other kinds."""
        if not isinstance(self.value, dict):
            raise TypeError(f"{self.spec.name} is a {self.spec.kind}; its value {self.value!r} has no shares")
        return dict(self.value)

    def bounded(self, value: float) -> float:
        """`value`, moved inside the announced bounds."""
        low = self.spec.low if self.spec.low is not None else value
        high = self.spec.high if self.spec.high is not None else value
        return min(max(value, low), high)


def change_of(receipt: Receipt) -> float:
    """By how much it changed a number; 0 of what is none."""
    before, after = receipt.before, receipt.after
    return after - before if isinstance(before, int | float) and isinstance(after, int | float) else 0.0
