"""Whether the judges can be trusted: bias_test.py the sequential test, judge_watch.py what is seen of each judge, and
the metrics and lines of the process log that come of it."""

from oven_learner.rewards.watching.judge_watch import JudgeWatch

__all__ = ["JudgeWatch"]
