"""The arms: nothing, random remedies, fixed rules, remedies from the literature, and the controller itself."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from random import Random
from typing import Protocol

from oven_learner.link.link_interface import Link


class Arm(Protocol):
    """Who steers an episode. All arms see the same observations and set the same knobs through the same client."""

    @property
    def name(self) -> str: ...

    @property
    def keeps_best(self) -> bool:
        """Whether the run announces `run.best` and keeps a copy at its best held-out reading."""

    def link(self, run: str, rng: Random) -> Link:
        """The other side of the client for one episode. Neither the run's name nor `rng` depends on the fault."""


@cache
def arms() -> Mapping[str, Arm]:
    """All arms by name, sorted: the tables of this package, and one arm for each installed agent."""
    from oven_agents.runtime.agent_loader import repeatable_agents
    from oven_bench.gym.arms import alarm_rules, baselines, controller

    every: list[Arm] = [*alarm_rules.ARMS, *baselines.ARMS, controller.MESH, controller.MESH_WITH_GRAPH]
    every += map(controller.single_agent, repeatable_agents())
    return {arm.name: arm for arm in sorted(every, key=lambda arm: arm.name)}
