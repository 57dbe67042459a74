"""From several members' scores to one reward: rules.py how a completion's standard scores become one, group_reward.py
a whole group, reliability.py how far each judge is to be believed."""

from oven_learner.rewards.aggregation.group_reward import (
    DEFAULT_RULE,
    aggregate,
    agreement,
    sees_difference,
    standard,
    standardised,
    weighted_mean,
)
from oven_learner.rewards.aggregation.reliability import Reliability
from oven_learner.rewards.aggregation.rules import RULES, rule_named

__all__ = [
    "DEFAULT_RULE",
    "RULES",
    "Reliability",
    "aggregate",
    "agreement",
    "rule_named",
    "sees_difference",
    "standard",
    "standardised",
    "weighted_mean",
]
