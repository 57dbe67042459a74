"""A function that loads the rules named in the settings (`kind: rule`)."""

from __future__ import annotations

from oven_core import plugins
from oven_learner.rewards.verdicts import RewardFunction


def load_rule(name: str, rule: str) -> RewardFunction:
    """Load an entry point of the group oven.rewards, or a function given as FILE:FUNCTION. Raises ConfigError or
    UnknownNameError if it cannot be loaded."""
    description = f"the rule of the committee member {name!r}"
    return plugins.load_function("rewards", "rule", rule, description=description, module=f"oven_rule_{name}")
