"""A small convolutional network on strokes and shapes that are drawn on the spot: SGD with momentum, weight decay and a
rate that falls in two steps."""

from __future__ import annotations

from oven_bench.gym.task_table import Task

TASK = Task(
    trainee="oven_bench.gym.tasks.images.trainee:Images",
    faults="oven_bench.gym.tasks.images.faults",
    noise=0.045,
    shown="loss",
)
"""Its noise: measured as that of pretraining is (seeds 101 and 102, five each); runs spread
by 1.0 to 2.3 % of their loss."""
