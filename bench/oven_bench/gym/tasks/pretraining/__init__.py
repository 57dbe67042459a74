"""Next bytes of Python sources: a byte model of one block, AdamW, a short warm-up and then a constant rate."""

from __future__ import annotations

from oven_bench.gym.task_table import Task

TASK = Task(
    trainee="oven_bench.gym.tasks.pretraining.trainee:Pretraining",
    faults="oven_bench.gym.faults.pretraining",
    noise=0.01,
    shown="loss",
)
"""Its noise: healthy runs of one seed that differ in nothing but where they continue in their data, from step 100 to
step 200 or 230 (seeds 101 to 103, six each), spread by 0.1 to 0.4 % of their loss; two of them differ by 1.4 times
that, and this is twice the difference."""
