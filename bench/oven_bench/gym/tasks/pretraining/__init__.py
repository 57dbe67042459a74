"""A pretraining job of 55,000 parameters: bytes of the Python standard library's own sources."""

from oven_bench.gym.tasks.pretraining.trainee import Pretraining

__all__ = ["Pretraining"]
