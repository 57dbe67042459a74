"""A knob's new value while the user types it or moves it on the knob's scale."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from oven_core.mesh.actuator_values import number, shares
from oven_core.protocol.messages import ActuatorSpec, Value

PER_DECADE: Final = 20
"""Steps of a logarithmic scale per factor of ten: one step is a factor of 1.12."""
NEAR: Final = 0.05
"""Share of a step within which a value counts as on a mark, for instance after rounding to DIGITS."""
PER_RANGE: Final = 100
"""Steps of a linear scale between its bounds. Without bounds one step is PART of the value."""
PART: Final = 0.05
SHARE: Final = 0.05
"""Share of a mixture that one step moves."""
DIGITS: Final = 3
"""Significant digits of a value reached by steps."""


@dataclass
class KnobEdit:
    """The state of the choice for one knob. `before` is the value in force; None if it is not known."""

    spec: ActuatorSpec
    before: Value
    moved: Value = None
    """The value that the steps reached."""
    typed: str = ""
    """The typed text, which has precedence if there is any."""
    component: int = 0
    """The component of a mixture that steps move."""

    def __post_init__(self) -> None:
        self.moved = self.before if self.before is not None else self._least()

    @property
    def value(self) -> Value:
        """Return the value to set. Raises ValueError with the reason if the typed text is not a value."""
        if not self.typed:
            return self.moved
        try:
            number = float(self.typed)
        except ValueError:
            raise ValueError(f"{self.typed!r} is not a number") from None
        if self.spec.kind == "simplex":
            if not 0 <= number <= 1:
                raise ValueError(f"{self.typed!r} is not a share: a share lies between 0 and 1")
            now = shares(self.moved)
            return self._shifted(now, number - now[self.spec.choices[self.component]])
        return number

    def type(self, character: str) -> bool:
        """Type a character and return whether it was accepted. Only characters of a number are, and none if the knob
        has named choices."""
        if self.spec.kind == "choice" or len(character) != 1 or character not in "0123456789.e+-":
            return False
        self.typed += character
        return True

    def rub_out(self) -> None:
        self.typed = self.typed[:-1]

    def move(self, steps: int) -> None:
        """Move by steps on the knob's scale, within its bounds. The start is the typed text if it is a value."""
        try:
            begin = self.value
        except ValueError:
            begin = self.moved
        self.typed = ""
        match self.spec.kind:
            case "scalar":
                self.moved = self._stepped(number(begin), steps)
            case "choice":
                names = self.spec.choices
                index = names.index(begin) if isinstance(begin, str) and begin in names else 0
                self.moved = names[(index + steps) % len(names)] if names else begin
            case "simplex":
                self.moved = self._shifted(shares(begin), steps * SHARE)
            case _:
                self.moved = begin

    def pick(self, by: int) -> None:
        if self.spec.choices:
            self.component = (self.component + by) % len(self.spec.choices)

    def position(self, value: float | None) -> float | None:
        """Return a value's position between the bounds, 0 to 1 on the knob's scale; None without bounds or a number."""
        low, high = self.spec.low, self.spec.high
        if value is None or low is None or high is None or high <= low:
            return None
        if self.spec.scale == "log" and low > 0:
            share = math.log(value / low) / math.log(high / low) if value > 0 else 0.0
        else:
            share = (value - low) / (high - low)
        return min(1.0, max(0.0, share))

    def _stepped(self, value: float | None, steps: int) -> Value:
        low, high = self.spec.low, self.spec.high
        if value is None:
            return self.moved
        if self.spec.scale == "log" and value > 0:
            wanted = 10 ** ((_mark(value, steps) + steps) / PER_DECADE)
        elif low is not None and high is not None:
            wanted = value + steps * (high - low) / PER_RANGE
        else:
            wanted = value + steps * (abs(value) * PART or PART)
        wanted = _rounded(wanted, value, low, high)
        wanted = wanted if low is None else max(low, wanted)
        return wanted if high is None else min(high, wanted)

    def _shifted(self, before: dict[str, float], by: float) -> Value:
        """Return the mixture with the chosen share moved by `by`. The others change in proportion."""
        names = self.spec.choices
        if not names or set(before) != set(names):
            return self.moved
        low, high = self.spec.low or 0.0, self.spec.high if self.spec.high is not None else 1.0
        name = names[self.component]
        others = {component: before[component] for component in names if component != name}
        room = math.fsum(others.values())
        if not others:
            return dict(before)
        most = min(high, 1 - low * len(others))
        share = round(min(most, max(low, before[name] + by)), 9)
        rest = 1 - share
        if room > 0:
            shares = {component: max(low, part * rest / room) for component, part in others.items()}
        else:
            shares = {component: rest / len(others) for component in others}
        total = math.fsum(shares.values())
        shares = {component: part * rest / total if total else part for component, part in shares.items()}
        return {component: share if component == name else shares[component] for component in names}

    def _least(self) -> Value:
        match self.spec.kind:
            case "scalar":
                return self.spec.low if self.spec.low is not None else self.spec.high
            case "choice":
                return self.spec.choices[0] if self.spec.choices else None
            case "simplex":
                return {name: 1 / len(self.spec.choices) for name in self.spec.choices}
            case _:
                return None


def _mark(value: float, steps: int) -> int:
    """Return the logarithmic mark of a value; between two marks, the one behind it."""
    position = PER_DECADE * math.log10(value)
    near = round(position)
    if abs(position - near) < NEAR:
        return near
    return math.floor(position) if steps > 0 else math.ceil(position)


def _rounded(wanted: float, before: float, low: float | None, high: float | None) -> float:
    """Round to DIGITS, unless that gives the start value."""
    if not wanted or not math.isfinite(wanted):
        return wanted
    scale = max(abs(wanted), (high - low) / PER_RANGE if low is not None and high is not None else 0.0)
    short = round(wanted, DIGITS - 1 - math.floor(math.log10(scale)))
    return short if short != before else wanted
