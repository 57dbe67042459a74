"""Validate, compare and format the values of actuators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from oven_core.protocol.messages import ActuatorSpec, Value

SUM_TOLERANCE = 1e-3
"""Maximum difference between 1 and the sum of a simplex's proposed shares, which are then normalised."""
TOLERANCE = 1e-6
"""Maximum relative difference between a value and its read-back. No actuator is stored in bf16, which is coarser."""

Direction = Literal["up", "down", "keep", "set"]
"""`set` if the effective value is unknown or the kind has no order."""

_CONTROL_TO_SPACE = {code: " " for code in (*range(32), 127)}


@dataclass(frozen=True, slots=True)
class Fault:
    """The reason for refusing a value. `problem` completes "agent x proposed V for A, " and includes the remedy."""

    kind: Literal["type", "bounds"]
    problem: str


def rounded(value: float) -> float:
    """Round to the nine significant digits of messages, so that comparisons use the values that were sent."""
    return float(f"{value:.9g}")


def number(value: Value) -> float | None:
    """Return `value` as a float, or None if it is not a finite number."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        return float(value)
    return None


def shares(value: Value) -> dict[str, float]:
    """Return a simplex's shares, or an empty dict for any other value."""
    return value if isinstance(value, dict) else {}


def coerce(spec: ActuatorSpec, value: Value) -> Value | Fault:
    """Return `value` in the actuator's form, or the fault. A simplex is normalised, with its components in the
    announced order. Bounds are not checked, because the learner may read back a value that would be refused as a
    proposal."""
    if spec.kind == "scalar":
        scalar = number(value)
        if scalar is None:
            return Fault("type", f"but a finite number is required: propose one{_range_text(spec)}")
        if spec.scale == "log" and scalar <= 0:
            return Fault("type", f"whose scale is logarithmic: propose a number above 0{_range_text(spec)}")
        return rounded(scalar)
    if spec.kind == "choice":
        if not isinstance(value, str) or value not in spec.choices:
            return Fault("type", f"whose choices are {_format_names(spec.choices)}: propose one of them")
        return value
    if spec.kind == "simplex":
        return _normalise_simplex(spec, shares(value))
    if value is None:
        return None
    argument = number(value)
    if argument is None:
        return Fault("type", "an action that takes a finite number or no value: propose one or the other")
    return rounded(argument)


def _normalise_simplex(spec: ActuatorSpec, proposed: dict[str, float]) -> Value | Fault:
    remedy = f"propose shares of 0 or more for {_format_names(spec.choices)} that sum to 1"
    if not spec.choices or set(proposed) != set(spec.choices):
        return Fault("type", f"whose components are {_format_names(spec.choices)}: {remedy}")
    if not all(math.isfinite(share) and share >= 0 for share in proposed.values()):
        return Fault("type", f"with a share that is negative or not finite: {remedy}")
    total = math.fsum(min(share, 2.0) for share in proposed.values())
    if abs(total - 1) > SUM_TOLERANCE:
        return Fault("type", f"with a sum of {total:.6g} instead of 1 ± {SUM_TOLERANCE}: {remedy}")
    return {name: rounded(proposed[name] / total) for name in spec.choices}


def check_bounds(spec: ActuatorSpec, value: Value) -> Fault | None:
    """Return the fault of a value of the correct kind outside the announced bounds, or None if it is inside."""
    scalar = number(value)
    amounts = {"": scalar} if scalar is not None else shares(value)
    for name, amount in amounts.items():
        if (spec.low is not None and amount < spec.low) or (spec.high is not None and amount > spec.high):
            component = f" (the share of {clip(name, 60)} is {amount:.6g})" if name else ""
            return Fault("bounds", f"outside its bounds {bounds(spec)}{component}: propose a value inside them")
    return None


def bounds(spec: ActuatorSpec) -> str:
    """Describe the announced bounds. At least one must be announced."""
    if spec.low is None:
        return f"of at most {show(spec.high)}"
    if spec.high is None:
        return f"of at least {show(spec.low)}"
    return f"{show(spec.low)} to {show(spec.high)}"


def direction(before: Value, value: Value) -> Direction:
    """Return the direction in which a scalar moves. Both scales are monotone, so the numbers can be compared."""
    old, new = number(before), number(value)
    if old is None or new is None:
        return "set"
    return "up" if new > old else "down" if new < old else "keep"


def variation(first: dict[str, float], second: dict[str, float]) -> float:
    """Return the total variation distance between two points of a simplex: the share that has to move."""
    return 0.5 * math.fsum(abs(first[name] - second[name]) for name in first)


def show(value: Value) -> str:
    """Return a short text for a value in a reason, which is the same on every machine."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        parts = [f"{clip(name, 40)} {share:.4g}" for name, share in list(value.items())[:8]]
        return "{" + ", ".join(parts) + (", …}" if len(value) > 8 else "}")
    if isinstance(value, str):
        return f"“{clip(value, 80)}”"
    return f"{value:.6g}"


def clip(text: str, size: int) -> str:
    """Return `text` as one line of at most `size` bytes in UTF-8, because a decision has to fit into the log."""
    text = text.translate(_CONTROL_TO_SPACE).strip()
    data = text.encode()
    if len(data) <= size:
        return text
    return data[: size - 3].decode(errors="ignore").rstrip() + "…"


def _range_text(spec: ActuatorSpec) -> str:
    return "" if spec.low is None and spec.high is None else f", bounds {bounds(spec)}"


def _format_names(names: tuple[str, ...]) -> str:
    text = ", ".join(clip(name, 60) for name in names[:12]) or "none"
    return text + (", …" if len(names) > 12 else "")


def same_value(first: Value, second: Value) -> bool:
    """Return whether two values are equal up to TOLERANCE."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return set(first) == set(second) and all(same_value(first[name], second[name]) for name in first)
    if isinstance(first, int | float) and isinstance(second, int | float):
        return math.isclose(first, second, rel_tol=TOLERANCE, abs_tol=1e-9)
    return first == second
