"""Families and arms as they are installed, by name. Each entry point is a class that is made without arguments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from oven_controller.errors import ConfigError
from oven_controller.stack import plugins
from oven_learner.gym.arm import Arm
from oven_learner.gym.fault import Family

TRAINING, HELD_OUT, ARMS = "faults", "held_out", "arms"
"""Groups of entry points."""


def families(group: str) -> Mapping[str, Family]:
    return {family.name: cast(Family, family) for family in _made(group, "family of faults")}


def arms() -> Mapping[str, Arm]:
    return {arm.name: cast(Arm, arm) for arm in _made(ARMS, "arm")}


def _made(group: str, kind: str) -> list[Arm | Family]:
    made: dict[str, Arm | Family] = {}
    for point in plugins.points(group):
        loaded = plugins.load(group, kind, point)
        one = loaded() if isinstance(loaded, type) else loaded
        if one.name in made:
            raise ConfigError(f"two entry points of oven.{group} are called {one.name!r}; names are unique")
        made[one.name] = one
    return [made[name] for name in sorted(made)]
