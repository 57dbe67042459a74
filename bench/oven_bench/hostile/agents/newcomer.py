"""Not an attacker: the shipped `learning_rate` under a name that has no reputation yet."""

from __future__ import annotations

from oven_agents.shipped.learning_rate import LearningRate


class Newcomer(LearningRate):
    """As good as `learning_rate`. The bench measures how long it takes to be trusted."""
