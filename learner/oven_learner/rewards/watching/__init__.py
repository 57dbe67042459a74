"""Check whether judges can be trusted: bias_test.py has the sequential test, and judge_watch.py collects evidence on
each judge for metrics and log lines."""

from oven_learner.rewards.watching.judge_watch import JudgeWatch

__all__ = ["JudgeWatch"]
