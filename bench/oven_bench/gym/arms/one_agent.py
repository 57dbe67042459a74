"""Each installed agent by itself as an arm: `agent.learning_rate` is the agent `learning_rate`, without a prior.

Entry points of oven.arms name them; what an agent is worth alone says whether the swarm adds anything to its best.
"""

from __future__ import annotations

from oven_bench.gym.arms.controller import MeshArm


def __getattr__(name: str) -> MeshArm:
    """PEP 562: any name but a private one. Whether there is such an agent shows when the arm is played."""
    if name.startswith("_"):
        raise AttributeError(name)
    return MeshArm(f"agent.{name}", (name,))
