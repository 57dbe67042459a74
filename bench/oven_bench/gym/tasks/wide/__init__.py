"""A transformer over bytes, twice as wide as the pretraining task's, in a loop as users write them: a rate that falls
with the root of the step from the first step on, no warm-up, a clip, an evaluation every twenty steps."""

from __future__ import annotations

from oven_bench.gym.task_table import Task

TASK = Task(
    trainee="oven_bench.gym.tasks.wide.trainee:Wide",
    faults="oven_bench.gym.tasks.wide.faults",
    noise=0.012,
    shown="loss",
)
"""Its noise: measured as that of pretraining is (seeds 101 and 102, five each); runs spread
by 0.2 to 0.5 % of their loss."""
