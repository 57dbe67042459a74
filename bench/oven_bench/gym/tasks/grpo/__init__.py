"""The GRPO trainee: a small policy that sorts digits, judged by a committee of three."""

from __future__ import annotations

from oven_bench.gym.task_table import Task

TASK = Task(
    trainee="oven_bench.gym.tasks.grpo.trainee:Grpo",
    faults="oven_bench.gym.faults.grpo",
    noise=0.035,
    shown="reward",
    share_of_answers=True,
)
"""Its noise: as of pretraining, where healthy runs spread by 0.008 to 0.018 in accuracy."""
