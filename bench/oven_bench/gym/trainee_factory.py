"""The trainees by kind, imported when one is made: a kind that is not asked for costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import cast

from oven_bench.gym.fault import Trainee
from oven_bench.gym.task_table import Kind, task

Make = Callable[[Kind, int], Trainee]


def make(kind: Kind, seed: int) -> Trainee:
    """A fresh one: each episode has its own, so that nothing of one is left in the next."""
    module, _, name = task(kind).trainee.partition(":")
    return cast(Trainee, getattr(import_module(module), name)(seed))
