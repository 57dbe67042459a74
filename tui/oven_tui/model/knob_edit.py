"""Edits a knob's value. The user types it, or moves it in steps on the knob's scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from oven_core.mesh.actuator_values import number, shares
from oven_core.protocol.messages import ActuatorSpec, Value

STEPS_PER_DECADE: Final = 20
"""Number of marks of a logarithmic scale per factor of ten. A step goes to the next mark, by a factor of up to 1.12."""
TOLERANCE: Final = 0.05
"""Maximum distance, in steps, at which a rounded value counts as on a mark of a logarithmic scale."""
STEPS_PER_RANGE: Final = 100
"""Number of steps of a linear scale between its bounds."""
UNBOUNDED_STEP: Final = 0.05
"""Size of a step without bounds, as a share of the value."""
MIXTURE_STEP: Final = 0.05
"""Change of a mixture's component per step."""
DIGITS: Final = 3
"""Significant digits of a value after a step."""


@dataclass
class KnobEdit:
    """The new value of one knob while the user edits it."""

    spec: ActuatorSpec
    before: Value
    """The knob's current value, or None if it is unknown."""
    moved_value: Value = None
    """The value after moving in steps."""
    typed_text: str = ""
    """The text that the user has typed. Unless it is empty, it takes precedence over `moved_value`."""
    component: int = 0
    """Index of the component to edit, if the knob is a mixture."""

    def __post_init__(self) -> None:
        self.moved_value = self.before if self.before is not None else self._choose_start_value()

    @property
    def value(self) -> Value:
        """Return the new value. Raises ValueError if the typed text is not a valid value."""
        if not self.typed_text:
            return self.moved_value
        try:
            typed_number = float(self.typed_text)
        except ValueError:
            raise ValueError(f"{self.typed_text!r} is not a number") from None
        if self.spec.kind == "simplex":
            if not 0 <= typed_number <= 1:
                raise ValueError(f"{self.typed_text!r} is not a share: it must be between 0 and 1")
            current = shares(self.moved_value)
            return self._shift(current, typed_number - current[self.spec.choices[self.component]])
        return typed_number

    def type_character(self, character: str) -> bool:
        """Type a character, and return whether it was accepted. Only characters of numbers are accepted, and a knob
        with named choices accepts none."""
        if self.spec.kind == "choice" or len(character) != 1 or character not in "0123456789.e+-":
            return False
        self.typed_text += character
        return True

    def erase(self) -> None:
        self.typed_text = self.typed_text[:-1]

    def move(self, steps: int) -> None:
        """Move the value by steps on the knob's scale, within its bounds. Typed text is its start if it is valid."""
        try:
            start = self.value
        except ValueError:
            start = self.moved_value
        self.typed_text = ""
        match self.spec.kind:
            case "scalar":
                self.moved_value = self._step(number(start), steps)
            case "choice":
                names = self.spec.choices
                index = names.index(start) if isinstance(start, str) and start in names else 0
                self.moved_value = names[(index + steps) % len(names)] if names else start
            case "simplex":
                self.moved_value = self._shift(shares(start), steps * MIXTURE_STEP)
            case _:
                self.moved_value = start

    def pick(self, offset: int) -> None:
        """Select another component of a mixture."""
        if self.spec.choices:
            self.component = (self.component + offset) % len(self.spec.choices)

    def position(self, value: float | None) -> float | None:
        """Return a value's position between the bounds, from 0 to 1, or None if there are no bounds or no value."""
        low, high = self.spec.low, self.spec.high
        if value is None or low is None or high is None or high <= low:
            return None
        if self.spec.scale == "log" and low > 0:
            share = math.log(value / low) / math.log(high / low) if value > 0 else 0.0
        else:
            share = (value - low) / (high - low)
        return min(1.0, max(0.0, share))

    def _step(self, value: float | None, steps: int) -> Value:
        low, high = self.spec.low, self.spec.high
        if value is None:
            return self.moved_value
        if self.spec.scale == "log" and value > 0:
            target = 10 ** ((_find_mark(value, steps) + steps) / STEPS_PER_DECADE)
        elif low is not None and high is not None:
            target = value + steps * (high - low) / STEPS_PER_RANGE
        else:
            target = value + steps * (abs(value) * UNBOUNDED_STEP or UNBOUNDED_STEP)
        target = _round_target(target, value, low, high)
        if low is not None:
            target = max(low, target)
        return target if high is None else min(high, target)

    def _shift(self, before: dict[str, float], change: float) -> Value:
        """Return the mixture after changing the selected component by `change`. The others change in proportion."""
        names = self.spec.choices
        if len(names) < 2 or set(before) != set(names):
            return self.moved_value
        selected = names[self.component]
        others = {name: before[name] for name in names if name != selected}
        low = self.spec.low or 0.0
        high = 1 - low * len(others)
        if self.spec.high is not None:
            high = min(high, self.spec.high)
        share = round(min(high, max(low, before[selected] + change)), 9)
        new_shares = {selected: share, **_distribute(1 - share, others, low)}
        return {name: new_shares[name] for name in names}

    def _choose_start_value(self) -> Value:
        """Return a valid value for a knob whose value is unknown."""
        match self.spec.kind:
            case "scalar":
                return self.spec.low if self.spec.low is not None else self.spec.high
            case "choice":
                return self.spec.choices[0] if self.spec.choices else None
            case "simplex":
                return {name: 1 / len(self.spec.choices) for name in self.spec.choices}
            case _:
                return None


def _distribute(total: float, parts: dict[str, float], low: float) -> dict[str, float]:
    """Divide `total` in proportion to `parts`, or evenly if all are 0. Every result is at least `low`."""
    results = {}
    rest = math.fsum(parts.values())
    ascending = sorted(parts, key=lambda name: parts[name])  # larger parts shrink if smaller ones are raised to `low`
    for index, name in enumerate(ascending):
        results[name] = max(low, total * parts[name] / rest if rest > 0 else total / (len(parts) - index))
        total -= results[name]
        rest -= parts[name]
    return results


def _find_mark(value: float, steps: int) -> int:
    """Return the mark at `value` on a logarithmic scale. Between two marks, return the one opposite to the steps."""
    position = STEPS_PER_DECADE * math.log10(value)
    nearest = round(position)
    if abs(position - nearest) < TOLERANCE:
        return nearest
    return math.floor(position) if steps > 0 else math.ceil(position)


def _round_target(target: float, start: float, low: float | None, high: float | None) -> float:
    """Round to `DIGITS` digits, unless the result is the start value."""
    if not target or not math.isfinite(target):
        return target
    scale = max(abs(target), (high - low) / STEPS_PER_RANGE if low is not None and high is not None else 0.0)
    rounded = round(target, DIGITS - 1 - math.floor(math.log10(scale)))
    return rounded if rounded != start else target
