"""GRPO on answers four times as long: a prompt's digits forwards and backwards in turn, paid by the digit until the
first wrong one. As TRL runs it: no KL term, two reward functions, held-out figures from the trainer's own evaluation
only."""

from __future__ import annotations

from oven_bench.gym.task_table import Task

TASK = Task(
    trainee="oven_bench.gym.tasks.long_grpo.trainee:LongGrpo",
    faults="oven_bench.gym.tasks.long_grpo.faults",
    noise=0.03,
    shown="reward",
    share_of_answers=True,
)
"""Its noise: measured as that of pretraining is (seeds 101 and 102, four each); runs spread by 0.006 to 0.014."""
