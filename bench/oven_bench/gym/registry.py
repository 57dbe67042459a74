"""Arms as they are installed, by name. Each entry point is a class that is made without arguments, or an arm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from oven_bench.gym.arm import Arm
from oven_controller import plugins
from oven_controller.errors import ConfigError

GROUP = "arms"
"""Of entry points."""


def arms() -> Mapping[str, Arm]:
    made: dict[str, Arm] = {}
    for point in plugins.points(GROUP):
        loaded = plugins.load(GROUP, "arm", point)
        arm = cast(Arm, loaded() if isinstance(loaded, type) else loaded)
        if arm.name in made:
            raise ConfigError(f"two entry points of oven.{GROUP} are called {arm.name!r}; names are unique")
        made[arm.name] = arm
    return dict(sorted(made.items()))
