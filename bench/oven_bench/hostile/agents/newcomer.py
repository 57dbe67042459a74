"""Not an attacker: the shipped `learning_rate` under another name, as somebody's own agent whom no one knows yet."""

from __future__ import annotations

from oven_agents.shipped.learning_rate import LearningRate


class Newcomer(LearningRate):
    """Sees what `learning_rate` sees, and is right as often. How long is it before it is heard?"""
