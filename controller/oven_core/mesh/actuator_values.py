"""Validate, compare and format the values of actuators."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from oven_core.protocol.messages import ActuatorSpec, Value

SUM_TOLERANCE = 1e-3
"""Maximum difference between 1 and the sum of a simplex's proposed shares, which are then normalised to 1."""
READ_BACK_TOLERANCE = 1e-6
"""Maximum relative difference between a value and its read-back. No actuator uses bf16, which would differ more."""

Direction = Literal["up", "down", "keep", "set"]
"""The direction of a change; `set` if the old value is unknown or values of this kind have no order."""

_CONTROL_TO_SPACE = {code: " " for code in (*range(32), 127)}


@dataclass(frozen=True, slots=True)
class Fault:
    """A refusal of a value. `problem` completes the sentence "agent x proposed V for A, …" and includes the remedy."""

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
    """Return the shares of a simplex, or an empty dict for any other value."""
    return value if isinstance(value, dict) else {}


def coerce(spec: ActuatorSpec, value: Value) -> Value | Fault:
    """Return `value` in the actuator's form, or the fault.

    Shares are normalised and put in the announced order. Bounds are not checked, because the learner may read back a
    value outside them."""
    if spec.kind == "scalar":
        scalar = number(value)
        if scalar is None:
            return Fault("type", f"but a finite number is required: propose one{_describe_range(spec)}")
        if spec.scale == "log" and scalar <= 0:
            return Fault("type", f"whose scale is logarithmic: propose a number above 0{_describe_range(spec)}")
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
    total = math.fsum(min(share, 2.0) for share in proposed.values())  # a huge share must not overflow
    if abs(total - 1) > SUM_TOLERANCE:
        return Fault("type", f"with a sum of {total:.6g} instead of 1 ± {SUM_TOLERANCE}: {remedy}")
    return {name: rounded(proposed[name] / total) for name in spec.choices}


def coerce_proposal(spec: ActuatorSpec, value: Value) -> Value | Fault:
    """Return `value` in the actuator's form and within its bounds, or the fault."""
    coerced = coerce(spec, value)
    return coerced if isinstance(coerced, Fault) else check_bounds(spec, coerced) or coerced


def check_bounds(spec: ActuatorSpec, value: Value) -> Fault | None:
    """Return a fault if a value of the correct kind is outside the announced bounds, or None."""
    scalar = number(value)
    amounts = {"": scalar} if scalar is not None else shares(value)  # component of a simplex, or "", → amount
    for name, amount in amounts.items():
        if (spec.low is not None and amount < spec.low) or (spec.high is not None and amount > spec.high):
            component = f" (the share of {clip(name, 60)} is {amount:.6g})" if name else ""
            limits = describe_bounds(spec)
            return Fault("bounds", f"outside its bounds {limits}{component}: propose a value inside them")
    return None


def describe_bounds(spec: ActuatorSpec) -> str:
    """Describe the announced bounds. At least one must be announced."""
    if spec.low is None:
        return f"of at most {show(spec.high)}"
    if spec.high is None:
        return f"of at least {show(spec.low)}"
    return f"{show(spec.low)} to {show(spec.high)}"


def direction(before: Value, value: Value) -> Direction:
    """Return the direction in which a scalar moves, `keep` if it does not move, or `set` for any other value."""
    old, new = number(before), number(value)
    if old is None or new is None:
        return "set"
    return "up" if new > old else "down" if new < old else "keep"


def variation(first: dict[str, float], second: dict[str, float]) -> float:
    """Return the total variation distance between two points of a simplex: the share that has to move."""
    return 0.5 * math.fsum(abs(first[name] - second[name]) for name in first)


def show(value: Value) -> str:
    """Return a short text for a value in a reason. It is the same on every machine."""
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        parts = [f"{clip(name, 40)} {share:.4g}" for name, share in list(value.items())[:8]]
        return "{" + ", ".join(parts) + (", …}" if len(value) > 8 else "}")
    if isinstance(value, str):
        return f"“{clip(value, 80)}”"
    return f"{value:.6g}"


def clip(text: str, max_bytes: int) -> str:
    """Return `text` as one line of at most `max_bytes` in UTF-8, because a decision has to fit into the log."""
    text = text.translate(_CONTROL_TO_SPACE).strip()
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    return data[: max_bytes - 3].decode(errors="ignore").rstrip() + "…"


def _describe_range(spec: ActuatorSpec) -> str:
    return "" if spec.low is None and spec.high is None else f", bounds {describe_bounds(spec)}"


def _format_names(names: tuple[str, ...]) -> str:
    text = ", ".join(clip(name, 60) for name in names[:12]) or "none"
    return text + (", …" if len(names) > 12 else "")


def same_value(first: Value, second: Value) -> bool:
    """Return whether two values are equal up to READ_BACK_TOLERANCE."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        return set(first) == set(second) and all(same_value(first[name], second[name]) for name in first)
    if isinstance(first, int | float) and isinstance(second, int | float):
        return math.isclose(first, second, rel_tol=READ_BACK_TOLERANCE, abs_tol=1e-9)
    return first == second
