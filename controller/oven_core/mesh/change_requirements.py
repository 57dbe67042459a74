"""Check whether a run meets the needs of a change, and write changes in short notation ("optimizer.lr_scale:down")."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from oven_core.mesh.actuator_values import direction as scalar_direction
from oven_core.protocol.messages import Value

HELD_OUT = "held_out"
NEED_PATTERN = re.compile(r"^(held_out|actuator:[^\s:]+|metric:\S+)$")
NEED_FORMS = '"actuator:NAME", "metric:PATTERN" or "held_out"'


def is_met(need: str, actuators: Iterable[str], metrics: Iterable[str], held_out: bool) -> bool:
    """Return whether the announced actuators and metrics meet the need. A need in an unknown form is never met."""
    kind, _, name = need.partition(":")
    if kind == "actuator":
        return name in actuators
    if kind == "metric":
        return any(fnmatchcase(metric, name) for metric in metrics)
    return need == HELD_OUT and held_out


def change_between(actuator: str, before: Value, value: Value) -> str:
    """Return a change in the short notation, or only the actuator's name if the direction is unknown."""
    return change_name(actuator, scalar_direction(before, value))


def change_name(actuator: str, direction: str) -> str:
    """Return the short notation for moving an actuator in this direction."""
    return f"{actuator}:{direction}" if direction in ("up", "down") else actuator


def covers(pattern: str, change: str) -> bool:
    """Return whether `pattern` includes this change. A pattern without a direction includes both directions."""
    return pattern in (change, change.partition(":")[0])
