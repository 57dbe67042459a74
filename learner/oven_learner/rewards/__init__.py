"""The reward committee: rules and remote judges score each group, and what nobody scored trains nothing.

Importing it needs no torch; `skipping`, which works inside a TRL trainer, is imported by `attach`.
"""

from oven_learner.rewards.committee import Committee
from oven_learner.rewards.convening import convene
from oven_learner.rewards.description import ModelDescription

__all__ = ["Committee", "ModelDescription", "convene"]
