"""All arms by name: those plugged in under `oven.arms`, one for each fixed rule, and one for each installed agent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

from oven_agents.runtime.loader import repeatable_agents
from oven_bench.gym.arm import Arm
from oven_bench.gym.arms.controller import alone
from oven_bench.gym.arms.remedy_on_alarm import fixed_rules
from oven_core import plugins
from oven_core.errors import ConfigError

GROUP = "arms"
"""Of entry points: each names an arm, or a class that makes one without arguments."""


def arms() -> Mapping[str, Arm]:
    """In the order of their names. Raises ConfigError for a name that two arms have."""
    made: dict[str, Arm] = {}
    for arm in (*_plugged_in(), *fixed_rules(), *map(alone, repeatable_agents())):
        if arm.name in made:
            raise ConfigError(f"two arms are called {arm.name!r}; rename that of your entry point in oven.{GROUP}")
        made[arm.name] = arm
    return dict(sorted(made.items()))


def _plugged_in() -> Iterator[Arm]:
    for point in plugins.points(GROUP):
        loaded = plugins.load(GROUP, "arm", point)
        yield cast(Arm, loaded() if isinstance(loaded, type) else loaded)
