"""Direct preference optimisation (Rafailov et al. 2023, arXiv 2305.18290): the sorting policy against the reference
that it began as, on preferences between two of the reference's answers."""

from __future__ import annotations

from oven_bench.gym.task_table import Task

TASK = Task(
    trainee="oven_bench.gym.tasks.dpo.trainee:Dpo",
    faults="oven_bench.gym.tasks.dpo.faults",
    noise=0.02,
    shown="rewards/accuracies",
    share_of_answers=True,
)
"""Its noise: measured as that of pretraining is (seeds 101 and 102, five each); runs spread by 0.004 to 0.011."""
