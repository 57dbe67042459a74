"""A change's requirements of the run, and the spelling of changes: one reading for mesh and agents."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from oven_core.mesh.actuator_values import direction
from oven_core.protocol.messages import Value

HELD_OUT = "held_out"
NEED = re.compile(r"^(held_out|actuator:[^\s:]+|metric:\S+)$")
FORMS = '"actuator:NAME", "metric:PATTERN" or "held_out"'


def met(need: str, actuators: Iterable[str], metrics: Iterable[str], held_out: bool) -> bool:
    """Whether a run that announces these has what is needed. A need of no known form is met by nothing: what cannot
    be checked cannot be promised.
    """
    kind, _, name = need.partition(":")
    if kind == "actuator":
        return name in actuators
    if kind == "metric":
        return any(fnmatchcase(metric, name) for metric in metrics)
    return need == HELD_OUT and held_out


def change(actuator: str, before: Value, value: Value) -> str:
    """ "optimizer.lr_scale:down", or the bare name where the kind has no direction or the value now is unknown."""
    return spelt(actuator, direction(before, value))


def spelt(actuator: str, way: str) -> str:
    """The same from its parts."""
    return f"{actuator}:{way}" if way in ("up", "down") else actuator


def covers(pattern: str, change: str) -> bool:
    """Whether `pattern`, "name" or "name:up", names this change."""
    return pattern in (change, change.partition(":")[0])
