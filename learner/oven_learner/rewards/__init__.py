"""The reward committee: rules and remote judges that score each group. Groups without scores are skipped in training.
Importing this package does not import torch. `attach` imports `unscored_groups`, which changes a TRL trainer."""

from oven_learner.rewards.committee import Committee
from oven_learner.rewards.configured_committee import convene
from oven_learner.rewards.model_description import ModelDescription

__all__ = ["Committee", "ModelDescription", "convene"]
