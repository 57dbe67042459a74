"""The reward committee: rules and remote judges score each group, and what no one scored trains nothing.

Importing it needs no torch; `skip_unscored`, which works inside a TRL trainer, is imported by `attach`.
"""

from oven_learner.rewards.committee import Committee
from oven_learner.rewards.configured_committee import convene
from oven_learner.rewards.model_description import ModelDescription

__all__ = ["Committee", "ModelDescription", "convene"]
