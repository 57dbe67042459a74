"""The controller as an arm: with a prior, without one, with a false one, and agents by themselves.

Nothing is tuned for the gym: the rules are the product's defaults in autonomy `auto`, the agents those that are
installed. Arms that are compared withhold nothing; one of its own pays for controls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import ClassVar, Literal, TypeAlias

from oven_agents.runtime.closed_loop import participants
from oven_bench.gym.arms.in_memory_link import LoopLink
from oven_bench.gym.arms.shuffled_graph import shuffle_targets
from oven_controller.stack.kg_rules import merged
from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import GraphInfo, GraphInfoRequest
from oven_core.protocol.rules import Autonomy, Rules
from oven_kg.graph.graph_yaml import read
from oven_kg.graph.knowledge import Knowledge
from oven_kg.service.endpoints import Answers, answers

Ask: TypeAlias = Callable[[str, bytes], bytes | None]
"""The prior service without a bus: (endpoint, request) → answer."""

Tries: TypeAlias = Literal["", "risky", "unsure", "all"]

SHUFFLES = 8
"""Permuted graphs that the control draws from: one alone may be lucky."""
WITHHELD = 0.1
"""Share of passed decisions, in the arm that has controls."""


@dataclass(frozen=True)
class MeshArm:
    """`agents`: their names; None: all that are installed. `prior`: whether they have one, and which."""

    name: str
    agents: tuple[str, ...] | None = None
    prior: Literal["none", "graph", "shuffled"] = "none"
    control_share: float = 0.0
    autonomy: Autonomy = "auto"
    tries: Tries = ""
    """Which changes are tried on a branch first (rules.trials). Empty: the learner makes no trials."""
    keeps_best: ClassVar[bool] = True

    def link(self, run: str, rng: Random) -> LoopLink:
        """Raises UnknownNameError or ConfigError when an agent or the prior is not installed."""
        shuffled = rng.randrange(SHUFFLES) if self.prior == "shuffled" else None
        ask = None if self.prior == "none" else prior(shuffled)
        return controller_link(run, self.agents, ask, self.control_share, self.autonomy, self.tries)


MESH = MeshArm("mesh")
MESH_KG = MeshArm("mesh+kg", prior="graph")
MESH_SHUFFLED = MeshArm("mesh+kg.shuffled", prior="shuffled")
MESH_TRIALS = MeshArm("mesh+trials", tries="all")
MESH_KG_TRIALS = MeshArm("mesh+kg+trials", prior="graph", tries="all")
MESH_KG_RISKY_TRIALS = MeshArm("mesh+kg+trials.risky", prior="graph", tries="risky")
"""The product's default for a run that can make trials."""
MESH_SHUFFLED_TRIALS = MeshArm("mesh+kg.shuffled+trials", prior="shuffled", tries="all")
MESH_WITHHELD = MeshArm("mesh+kg+withheld", prior="graph", control_share=WITHHELD)


def alone(agent: str) -> MeshArm:
    """The controller with one agent and no prior: says whether all of them together add anything to the best one."""
    return MeshArm(f"agent.{agent}", (agent,))


def controller_link(
    run: str,
    agents: tuple[str, ...] | None,
    ask: Ask | None,
    control_share: float = 0.0,
    autonomy: Autonomy = "auto",
    trials: Tries | Literal["off"] = "",
) -> LoopLink:
    """A mesh with these installed agents, None: all; `trials`: the rule, empty: as the client announces it."""
    members = participants(agents, ask)

    def rules(announced: Rules) -> Rules:
        """As `up` has them: installed agents are trusted, and what the prior knows of needs and contradictions becomes
        the run's rules."""
        trusting = announced.trusting(member.name for member in members)
        update: dict[str, object] = {"autonomy": autonomy, "control_share": control_share}
        if trials:
            update["trials"] = trials
        given = trusting.model_copy(update=update)
        return given if ask is None else merged(given, _known(ask))

    return LoopLink(run, members, rules)


@lru_cache(maxsize=2 * SHUFFLES)
def prior(shuffled: int | None) -> Ask:
    """Shared by the episodes of a process: what they ask changes nothing in it."""
    return answers() if shuffled is None else Answers(Knowledge(shuffle_targets(read(), shuffled)))


def _known(ask: Ask) -> GraphInfo:
    answer = ask("info", GraphInfoRequest().wire())
    if answer is None:
        raise ConfigError("the prior service has no endpoint `info`")
    return GraphInfo.model_validate_json(answer)
