"""Combine several members' scores into one reward: rules.py for one completion's standard scores, group_reward.py for a
whole group, reliability.py for how far to trust each judge."""

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
